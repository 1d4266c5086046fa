"""What drafts have gained and cost at each size of a batch; where they lose, they pause.

Predictions may be wrong and guesses come true less often than before: of choices that seem to pay,
those are made that seem so by mistake. So what came of them is counted: the tokens that were right,
less the time that steps took longer and that was spent on looking for guesses in vain, as
`engine.draft.worth` weighs them. When nothing is left of what they have gained, there are no drafts
until a small allowance has paid for a new trial: it is all that they can cost in the long run. What
may be lost before that is less, the more sequences there are: a right guess then gains a smaller
part of a step, and what one load has gained at that size another one would lose.

A look for guesses that finds none worth a row takes the host next to nothing for one sequence, and
some percent of a step for thirty. So from the first step on such looks are spread out: together
they may take a share of the time that is smaller still, and what drafts have gained lately.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from engine.draft.times import class_of, fewest_of

# In steps without drafts, of one sequence; of n divided by the root of n.
_AT_START = 8.0
_MOST = 16.0
"""That can be saved up, and so be lost before it is noticed."""
_LEAST = -16.0
"""Debts beyond that are forgotten, so that the next trial comes within some thousand steps."""
_TRIAL = 2.0
"""Is to be there before drafts are tried again."""
_MOST_LOOKING = 1.0

# The same whatever the number of sequences.
_ALLOWANCE = 0.005
"""Of each step without drafts."""
_ALLOWANCE_TO_LOOK = 0.0025
_LOOKING_AT_START = 0.05
_LEAST_LOOKING = -0.05
"""The next look is no more than some twenty steps off: one that took longer was disturbed."""


@dataclass(slots=True)
class _Balance:
    """Of a class of batch sizes, in steps without drafts."""

    unit: float
    left: float
    is_paused: bool = False
    looking: float = _LOOKING_AT_START
    """What may go into looks in vain."""

    def add(self, steps: float) -> None:
        """So much was gained, or lost if it is negative."""
        self.left = min(max(self.left + steps, _LEAST * self.unit), _MOST * self.unit)
        if self.left < 0:
            self.is_paused = True
        elif self.left >= _TRIAL * self.unit:
            self.is_paused = False

    def let_look(self, steps: float) -> None:
        """So much more may go into looks, or less if it is negative."""
        self.looking = min(max(self.looking + steps, _LEAST_LOOKING), _MOST_LOOKING * self.unit)


class Balances:
    """One for each class of batch sizes."""

    def __init__(self) -> None:
        self._of_size: dict[int, _Balance] = {}

    def add(self, num_sequences: int, steps: float) -> None:
        """So much was gained, or lost if it is negative, with so many sequences."""
        balance = self._of(num_sequences)
        balance.add(steps)
        balance.let_look(max(steps, 0.0))

    def allow(self, num_sequences: int) -> None:
        """A step had no drafts."""
        balance = self._of(num_sequences)
        balance.add(_ALLOWANCE)
        balance.let_look(_ALLOWANCE_TO_LOOK)

    def looked_in_vain(self, num_sequences: int, steps: float) -> None:
        """So much time went into guesses of which none was worth a row."""
        balance = self._of(num_sequences)
        balance.add(-steps)
        balance.let_look(-steps)

    def may_draft(self, num_sequences: int) -> bool:
        """Whether guesses for so many sequences may be looked for, after all that was gained and
        lost so far."""
        balance = self._of(num_sequences)
        return not balance.is_paused and balance.looking > 0

    def _of(self, num_sequences: int) -> _Balance:
        size = class_of(num_sequences)
        if size not in self._of_size:
            unit = 1 / sqrt(fewest_of(size))
            self._of_size[size] = _Balance(unit, _AT_START * unit)
        return self._of_size[size]
