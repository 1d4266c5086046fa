"""How soon places are come back to, learnt from those of their sort that were, and were not.

A place waits: since it was made or was last hit. For each sort it is counted how many waits reached
an idle time, by powers of two, and how many ended there with a return: a hazard (the part that
returns in a power of two, of those that reached it), which needs no shape of the distribution and
is right though many waits are not over. What memory is given by is an index of Gittins (Journal of
the Royal Statistical Society B, 1979; for caches: Beckmann et al., LHD, NSDI 2018): the best that
can be had of keeping the place for some time from now on, returns per second of keeping it.

Sorts are tuples from the general to the particular, say a kind of place, how often it was come back
to, and its tenant. What few waits tell is filled up with what the shorter tuple knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from typing import Final

Sort = tuple[Hashable, ...]

_BUCKETS: Final = 17
"""Up to a second, two, four, ... and 18 hours."""
_WIDTHS: Final = [1.0, *(2.0**power for power in range(_BUCKETS - 1))]
"""Seconds."""
_PRIOR: Final = 0.2
"""Of waits, the part that returns in a power of two, before anything is known."""
_FILLED_UP: Final = 4.0
"""So many waits of the shorter sort are added to those of the longer one."""
_KEPT: Final = 0.99
"""What counts of old waits when the tables are made anew: tenants change."""
_MOST_SORTS: Final = 1024
"""That are told apart when the tables are made anew, the last ones of which a wait was over."""


class _Waits:
    """Of one sort, by the bucket that they have come to."""

    __slots__ = ("ended", "open", "returned")

    def __init__(self) -> None:
        self.ended = [0.0] * _BUCKETS
        self.returned = [0.0] * _BUCKETS
        """Of these."""
        self.open = [0.0] * _BUCKETS

    def hazard(self, known: list[float]) -> list[float]:
        """By bucket, filled up with what is `known` of the shorter sort."""
        found = list(known)
        reached = _FILLED_UP
        for bucket in reversed(range(_BUCKETS)):
            reached += self.ended[bucket]
            found[bucket] = (self.returned[bucket] + _FILLED_UP * known[bucket]) / reached
            # A bucket that a wait is in may still bring its return: it has not been survived.
            reached += self.open[bucket]
        return found


class Likelihood:
    """Returns per second, by sort and idle time."""

    def __init__(self) -> None:
        self._waits: OrderedDict[Sort, _Waits] = OrderedDict()
        """The one of which a wait was over last behind others."""
        self._hazards: dict[Sort, list[float]] = {}
        self._rates: dict[tuple[Sort, int], float] = {}

    def over(self, sort: Sort, idle: float, *, returned: bool) -> None:
        """A wait ended after so many seconds, with a return or without."""
        bucket = _bucket(idle)
        for level in _levels(sort):
            waits = self._waits.setdefault(level, _Waits())
            self._waits.move_to_end(level)
            waits.ended[bucket] += 1
            waits.returned[bucket] += returned

    def learn(self, waiting: Iterable[tuple[Sort, float]], each: int = 1) -> None:
        """Make the tables anew, now that these waits, `each` of which stands for so many, have
        lasted so many seconds.
        """
        while len(self._waits) > _MOST_SORTS:
            self._waits.popitem(last=False)
        for waits in self._waits.values():
            waits.open = [0.0] * _BUCKETS
            waits.returned = [_KEPT * count for count in waits.returned]
            waits.ended = [_KEPT * count for count in waits.ended]
        for sort, idle in waiting:
            bucket = _bucket(idle)
            for level in _levels(sort):
                if level != sort:
                    self._waits.setdefault(level, _Waits()).open[bucket] += each
                elif level in self._waits:  # there are too many particular ones to begin with each
                    self._waits[level].open[bucket] += each
        self._hazards.clear()
        self._rates.clear()

    def rate(self, sort: Sort, idle: float) -> float:
        """Returns per second of keeping a place of this sort, idle for so long."""
        bucket = _bucket(idle)
        rate = self._rates.get((sort, bucket))
        if rate is None:
            rate = self._rates[sort, bucket] = _index(self._hazard(sort), bucket)
        return rate

    def _hazard(self, sort: Sort) -> list[float]:
        if not sort:
            return [_PRIOR] * _BUCKETS
        found = self._hazards.get(sort)
        if found is None:
            found = self._hazard(sort[:-1])
            waits = self._waits.get(sort)
            if waits is not None:
                found = waits.hazard(found)
            self._hazards[sort] = found
        return found


def _levels(sort: Sort) -> Iterator[Sort]:
    """The particular ones first: they are forgotten before what they are parts of."""
    return (sort[:length] for length in range(len(sort), 0, -1))


def _bucket(idle: float) -> int:
    return min(int(idle).bit_length(), _BUCKETS - 1) if idle > 0 else 0


def _index(hazards: list[float], start: int) -> float:
    """The most returns per second of keeping a place on for some buckets, from the start of one."""
    left, returns, seconds, best = 1.0, 0.0, 0.0, 0.0
    for bucket in range(start, _BUCKETS):
        returns += left * hazards[bucket]
        seconds += left * _WIDTHS[bucket] * (1 - hazards[bucket] / 2)
        left *= 1 - hazards[bucket]
        if returns > best * seconds:
            best = returns / seconds
    return best
