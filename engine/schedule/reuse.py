"""What smaller and larger pools would have found: reuse distances of a sample of the blocks.

SHARDS with a fixed size and its correction (Waldspurger, Park, Garthwaite and Ahmad: "Efficient MRC
Construction with SHARDS", FAST'15, sections 3 and 4): the blocks are watched whose hashes lie below
a threshold, which sinks so that there are never too many. A pool with the least recently used
evicted first finds a block if fewer others were used since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from engine.api import ReusePoint

MOST_WATCHED = 2048
_PLACES = 1 << 32
_FACTORS = (0.25, 0.5, 1, 2, 4, 8, 16)


class ReuseCurve:
    """Of one pool. A use takes constant time, but for `MOST_WATCHED` numbers that move over."""

    def __init__(
        self, num_blocks: int, num_findable: int, most_watched: int = MOST_WATCHED
    ) -> None:
        """It holds `num_blocks` of each kind, in whose memory so many can be found of chains."""
        self._sizes = [int(num_blocks * factor) for factor in _FACTORS]
        self._reaches = [int(num_findable * factor) for factor in _FACTORS]
        self._most = most_watched
        self._threshold = _PLACES
        # When each watched block was used last, all these times in order, and the blocks by place.
        self._last: dict[bytes, int] = {}
        self._times: list[int] = []
        self._highest: list[tuple[int, bytes]] = []
        self._now = 0
        self._num_asked = 0
        # Of the asked ones that were watched: how many there were, and how many a pool of each size
        # finds, both at the rate of now.
        self._num_watched = 0.0
        self._found = [0.0] * len(self._sizes)

    def look_up(self, hashes: Iterable[bytes]) -> None:
        """Blocks that a request has asked for, whether they were found or not."""
        for block_hash in hashes:
            self._num_asked += 1
            place = _place(block_hash)
            if place < self._threshold:
                self._num_watched += 1
                distance = self._use(block_hash, place)
                if distance is not None:
                    self._count(distance)

    def touch(self, hashes: Iterable[bytes]) -> None:
        """Blocks that a request leaves, among them those that it has computed."""
        for block_hash in hashes:
            place = _place(block_hash)
            if place < self._threshold:
                self._use(block_hash, place)

    def points(self) -> Sequence[ReusePoint]:
        """By size of a pool: which part of the blocks that were asked for it would have found."""
        expected = self._num_asked * self._threshold / _PLACES
        if not expected:
            return [ReusePoint(size, 0.0) for size in self._sizes]
        # What the sample has too few of are blocks that are used often: all pools find these.
        missing = expected - self._num_watched
        return [
            ReusePoint(size, min(1.0, max(0.0, (found + missing) / expected)))
            for size, found in zip(self._sizes, self._found, strict=True)
        ]

    @property
    def gain_of_twice(self) -> float:
        """Which part more a pool of twice the size would have found."""
        points = self.points()
        return points[_FACTORS.index(2)].found - points[_FACTORS.index(1)].found

    def _use(self, block_hash: bytes, place: int) -> int | None:
        """How many other watched blocks were used since this one was, if it was."""
        self._now += 1
        last = self._last.get(block_hash)
        distance = None
        if last is not None:
            index = bisect_left(self._times, last)
            distance = len(self._times) - 1 - index
            del self._times[index]
        self._times.append(self._now)
        self._last[block_hash] = self._now
        if last is None:
            heappush(self._highest, (-place, block_hash))
            if len(self._last) > self._most:
                self._lower()
        return distance

    def _count(self, distance: int) -> None:
        scaled = distance * _PLACES / self._threshold
        for index in range(bisect_left(self._reaches, scaled), len(self._reaches)):
            if scaled < self._reaches[index]:
                self._found[index] += 1

    def _lower(self) -> None:
        """Watch the blocks of the highest place no more."""
        before, self._threshold = self._threshold, -self._highest[0][0]
        while self._highest and -self._highest[0][0] >= self._threshold:
            _, block_hash = heappop(self._highest)
            del self._times[bisect_left(self._times, self._last.pop(block_hash))]
        rate = self._threshold / before
        self._num_watched *= rate
        self._found = [found * rate for found in self._found]


def _place(block_hash: bytes) -> int:
    """Where a hash, which is as good as random, lies among all places."""
    return int.from_bytes(block_hash[:4], "big")
