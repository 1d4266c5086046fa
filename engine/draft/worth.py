"""How many guesses of which sequences pay, given what more rows cost a step.

Wrong guesses are rows for nothing, and a step of more rows takes longer for everybody in it. What
is maximized is the geometric mean of how fast sequences go on, expected tokens over the seconds of
the step: alone that is the goodput of Liu et al. (arXiv 2406.14066), and among many it is
proportionally fair (Kelly, 1997). One that repeats itself may not slow seven others down for tokens
that only it gains. So drafts grow with how often they come true, and vanish in a full batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log1p

import numpy as np

_LEAST_GAIN = 0.03
"""Of a step's time; less than that is not sure to be a gain: where many choices seem to pay a
little, those are made that seem so by mistake."""


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds of a step that decodes, by its rows and the keys that these attend to."""

    points: tuple[tuple[int, float], ...]
    """(rows, seconds without keys), fewest rows first; between them it is linear, and behind the
    last two it goes on as there."""
    per_key: float = 0.0
    """Of each key of each row."""

    @property
    def is_measured(self) -> bool:
        """Whether steps of several rows were timed."""
        return len(self.points) > 1

    @property
    def is_plausible(self) -> bool:
        """Whether steps take time, and of many rows more than of one: else timing was disturbed."""
        seconds = [point[1] for point in self.points]
        return min(seconds, default=0.0) > 0 and (len(seconds) == 1 or seconds[-1] > seconds[0])

    def curve(self, most_rows: int) -> list[float]:
        """Seconds without keys of steps of 0, 1 ... `most_rows` rows."""
        rows, seconds = zip(*self.points, strict=True)
        found: list[float] = np.interp(np.arange(most_rows + 1), rows, seconds).tolist()
        if len(rows) > 1:
            slope = max(0.0, (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]))
            behind = range(1, most_rows - rows[-1] + 1)
            found[rows[-1] + 1 :] = [seconds[-1] + slope * more for more in behind]
        return found


FREE_ROWS = RowCosts(((1, 1.0),))
"""For engines whose model was not measured: a step takes as long, whatever its rows."""


@dataclass(frozen=True, slots=True)
class Market:
    """What guesses are worth in a step, and what they cost."""

    step: float
    """Seconds that the step takes without guesses."""
    token: float
    """Seconds that a token takes so."""
    added: Sequence[float]
    """Seconds that one guess more adds to the step, two, and so on, without keys."""
    key: float = 0.0
    """Seconds that each key of a guess adds."""

    @property
    def is_open(self) -> bool:
        """Whether guesses pay if they are right."""
        return any(count * self.token - cost > self._least for count, cost in self._counted)

    def lengths(self, chances: Sequence[Sequence[float]], keys: Sequence[float]) -> list[int]:
        """How many guesses of each draft pay.

        `chances` has for each draft how likely each of its guesses counts, falling, and `keys` the
        seconds of a row's keys.
        """
        gains = sorted(
            (
                (gain - keys[draft], gain, draft)
                for draft, of_draft in enumerate(chances)
                for gain in self._gains(of_draft)
            ),
            reverse=True,
        )
        best, most, gained, of_keys = 0, self._least, 0.0, 0.0
        for (count, cost), (_, gain, draft) in zip(self._counted, gains, strict=False):
            gained += gain
            of_keys += keys[draft]
            worth = gained - self.step * log1p((cost + of_keys) / self.step)
            if worth > most:
                best, most = count, worth
        lengths = [0] * len(chances)
        for *_, draft in gains[:best]:
            lengths[draft] += 1
        return lengths

    def _gains(self, chances: Sequence[float]) -> list[float]:
        """What each guess of a draft adds to its sequence's share of the worth, in seconds."""
        expected = accumulate(chances, initial=0.0)
        return [self.token * (log1p(new) - log1p(old)) for old, new in pairwise(expected)]

    @property
    def _least(self) -> float:
        return _LEAST_GAIN * self.step

    @property
    def _counted(self) -> Iterable[tuple[int, float]]:
        return enumerate(self.added, 1)
