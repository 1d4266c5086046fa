"""What a step takes and what drafts add to it: measured at start, and learned from every step.

At start rows of one sequence are timed, and the model alone. A real step has more to it: other
sequences with keys of their own, tokens to draw, drafts to look up, results to hand out, a device
that cannot be told of the next step before this one is known; and a machine may have other things
to do. So for each class of batch sizes it is learned by what factor steps without drafts take
longer than was measured, and by what further factors one draft, two, four and so on add more.
"""

from __future__ import annotations

from collections import defaultdict
from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.draft.worth import RowCosts

_WEIGHT = 0.2
"""Of a new observation."""
_FARTHEST = 2.0
"""An observation that is farther off was disturbed, and counts as if it were so far."""
_NOISE = 0.1
"""Of what a step takes, by which steps differ that are alike: what drafts add is learned the
faster, the more it stands out of that."""
_SPREAD = 0.25
"""Of what so many drafts teach, what they teach of half and of twice as many."""
_LEAST, _MOST = 0.1, 100.0
"""Of the factors of what drafts add."""
_FORGOTTEN = 0.002
"""Of these factors, with each step without drafts: what was disturbed or has become cheaper is
tried again after some hundreds of steps."""
_MOST_IN_A_ROW = 64
"""Steps with drafts; then one without tells anew what they are compared with."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer[Any]]


def class_of(num_sequences: int) -> int:
    """Batches of 1, of 2 and 3, of 4 to 7 and so on are much alike."""
    return num_sequences.bit_length()


def fewest_of(size: int) -> int:
    """Sequences of the smallest batches of a class."""
    return 1 << max(0, size - 1)


class StepTimes:
    """Predicts what steps take, in seconds."""

    def __init__(self, measured: RowCosts, most_rows: int) -> None:
        """What was not measured is not learned either."""
        self._measured = np.array(measured.curve(most_rows))
        self._per_key = measured.per_key
        self._learns = measured.is_measured
        self._classes: defaultdict[int, _Factors] = defaultdict(lambda: _Factors(most_rows))

    def observe(self, num_sequences: int, num_rows: int, num_keys: int, seconds: float) -> float:
        """A step that only decodes has taken so long; its sequences have `num_keys` together.

        Returns what share of a step without drafts it was longer than one. A step that was far
        longer than others that are alike counts as if it were less so.
        """
        if not self._learns:
            return 0.0
        factors = self._of(num_sequences)
        alone = self._alone(num_sequences, num_keys)
        count = num_rows - num_sequences
        if not count:
            factors.learn_plain(seconds / alone)
            return 0.0
        # As if all sequences were as long, and had as many drafts.
        added = float(self._measured[num_rows] - self._measured[num_sequences])
        added += self._per_key * num_keys * count / num_sequences
        return factors.learn_drafts(count, seconds / alone, added / alone)

    def is_due_without(self, num_sequences: int) -> bool:
        """Whether a step of so many sequences should have no drafts, because it is not known what
        it takes without, or has not been seen for long."""
        return self._learns and self._of(num_sequences).num_in_a_row >= _MOST_IN_A_ROW

    def plain(self, num_sequences: int, num_keys: int) -> float:
        """What a step without drafts takes."""
        return self._of(num_sequences).plain * self._alone(num_sequences, num_keys)

    def per_key(self, num_sequences: int) -> float:
        """What each key of a draft adds."""
        return self._of(num_sequences).plain * self._per_key

    def added(self, num_sequences: int, num_rows: int, most: int) -> list[float]:
        """What one draft adds to a step of `num_rows`, without keys, two of them and so on; never
        less than fewer of them do."""
        factors = self._of(num_sequences)
        counts = np.arange(1, max(0, most) + 1)
        seconds = self._measured[num_rows + counts] - self._measured[num_rows]
        seconds *= factors.plain * factors.of_drafts(counts)
        added: list[float] = np.maximum.accumulate(seconds).tolist()
        return added

    def _alone(self, num_sequences: int, num_keys: int) -> float:
        return float(self._measured[num_sequences]) + self._per_key * num_keys

    def _of(self, num_sequences: int) -> _Factors:
        return self._classes[class_of(num_sequences)]


class _Factors:
    """Of a class of batch sizes: by what factors it differs from what was measured."""

    def __init__(self, most_rows: int) -> None:
        self.plain = 1.0
        """Of a step without drafts."""
        self.num_in_a_row = _MOST_IN_A_ROW
        """Steps since the newest one without drafts."""
        self._is_known = False
        self._places = np.arange(most_rows.bit_length() + 1)
        self._drafts = np.ones(len(self._places))
        """Of what 1, 2, 4, 8 ... drafts add, apart from `plain`; in between it is linear in their
        logarithm."""

    def learn_plain(self, factor: float) -> None:
        self.num_in_a_row = 0
        if self._is_known:
            least, most = self.plain / _FARTHEST, self.plain * _FARTHEST
            self.plain += _WEIGHT * (min(max(factor, least), most) - self.plain)
        else:
            self.plain, self._is_known = factor, True
        self._drafts += _FORGOTTEN * (1 - self._drafts)

    def learn_drafts(self, count: int, factor: float, added: float) -> float:
        """From a step with so many drafts, which took `factor` of what was measured without them,
        where `added` more was measured with them; returns as `StepTimes.observe` does.
        """
        self.num_in_a_row += 1
        place = log2(count)
        expected = 1 + added * float(np.interp(place, self._places, self._drafts))
        observed = min(max(factor / self.plain, expected / _FARTHEST), expected * _FARTHEST)
        # Least mean squares, normalized by what is expected and by the noise.
        gain = _WEIGHT * added / (added**2 + _NOISE**2)
        self._drafts += gain * (observed - expected) * _SPREAD ** abs(self._places - place)
        np.clip(self._drafts, _LEAST, _MOST, out=self._drafts)
        return observed - 1

    def of_drafts(self, counts: Integers) -> Floats:
        factors: Floats = np.interp(np.log2(counts), self._places, self._drafts)
        return factors
