"""What drafts have gained and cost at each size of a batch; where they lose, they pause.

Predictions may be wrong and guesses come true less often than before: of choices that seem to pay,
those are made that seem so by mistake. So what came of them is counted: the tokens that were right,
less the time that steps took longer and that was spent on looking for guesses in vain, as
`engine.draft.worth` weighs them. When nothing is left of what they have gained, there are no drafts
until a small allowance has paid for a new trial: it is all that they can cost in the long run.

A look for guesses that finds none worth a row takes the host next to nothing for one sequence, and
some percent of a step for thirty. So from the first step on such looks are spread out: together
they may take as small a share of the time, and what drafts have gained lately.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

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
_LOOKING_AT_START = 0.05
_MOST_LOOKING = 1.0
_LEAST_LOOKING = -0.1
"""The next look is no more than some twenty steps off: one that took longer was disturbed."""


@dataclass(slots=True)
class _Balance:
    """Of a class of batch sizes, in steps without drafts."""

    left: float = _AT_START
    is_paused: bool = False
    looking: float = _LOOKING_AT_START
    """What may go into looks in vain."""


class Balances:
    """One for each class of batch sizes."""

    def __init__(self) -> None:
        self._of_size: defaultdict[int, _Balance] = defaultdict(_Balance)

    def add(self, num_sequences: int, steps: float) -> None:
        """So much was gained, or lost if it is negative, with so many sequences."""
        balance = self._of(num_sequences)
        balance.left = min(max(balance.left + steps, _LEAST), _MOST)
        if balance.left < 0:
            balance.is_paused = True
        elif balance.left >= _TRIAL:
            balance.is_paused = False
        balance.looking = min(balance.looking + max(steps, 0.0), _MOST_LOOKING)

    def allow(self, num_sequences: int) -> None:
        """A step had no drafts."""
        self.add(num_sequences, _ALLOWANCE)

    def looked_in_vain(self, num_sequences: int, steps: float) -> None:
        """So much time went into guesses of which none was worth a row."""
        self.add(num_sequences, -steps)
        balance = self._of(num_sequences)
        balance.looking = max(balance.looking - steps, _LEAST_LOOKING)

    def may_draft(self, num_sequences: int) -> bool:
        """Whether guesses for so many sequences may be looked for, after all that was gained and
        lost so far."""
        balance = self._of(num_sequences)
        return not balance.is_paused and balance.looking > 0

    def _of(self, num_sequences: int) -> _Balance:
        return self._of_size[class_of(num_sequences)]
