"""What drafts have gained and cost at each size of a batch; where they lose, they pause.

Predictions may be wrong and guesses come true less often than before: of choices that seem to pay,
those are made that seem so by mistake. So what came of them is counted: the tokens that were right,
less the time that steps took longer and that was spent on looking for guesses in vain, as
`engine.draft.worth` weighs them. When nothing is left of what they have gained, there are no drafts
until a small allowance has paid for a new trial: it is all that they can cost in the long run.
"""

from __future__ import annotations

from collections import defaultdict

from engine.draft.times import class_of

_ALLOWANCE = 0.005
"""Of each step without drafts."""
_AT_START = 8.0
_MOST = 16.0
"""That can be saved up, and so be lost before it is noticed."""
_LEAST = -16.0
"""Debts beyond that are forgotten, so that the next trial comes within some thousand steps."""
_TRIAL = 2.0
"""Is to be there before drafts are tried again."""


class Balances:
    """One for each class of batch sizes, in steps without drafts."""

    def __init__(self) -> None:
        self._left: defaultdict[int, float] = defaultdict(lambda: _AT_START)
        self._paused: set[int] = set()

    def add(self, num_sequences: int, steps: float) -> None:
        """So much was gained, or lost if it is negative, with so many sequences."""
        self._left[class_of(num_sequences)] += steps

    def allow(self, num_sequences: int) -> None:
        """A step had no drafts."""
        self.add(num_sequences, _ALLOWANCE)

    def may_draft(self, num_sequences: int) -> bool:
        """Whether so many sequences may have drafts, after all that was gained and lost so far."""
        size = class_of(num_sequences)
        left = self._left[size] = min(max(self._left[size], _LEAST), _MOST)
        if left < 0:
            self._paused.add(size)
        elif left >= _TRIAL:
            self._paused.discard(size)
        return size not in self._paused
