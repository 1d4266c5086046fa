"""What was evicted, by its hash, so that a miss can be explained.

Of the last losses it is known when, why and for whom; of those before, that they were. Who asks
must know the hash, and so the key of its namespace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from engine.api import BlockFate, Loss

_LOSSES_A_BLOCK: Final = 4
"""So many losses are remembered for each block of the pool."""
_SKETCHED_A_BLOCK: Final = 64
"""And so many before these."""
_MOST_SKETCHED: Final = 2 << 20
"""4 MiB."""
_MARK_BYTES: Final = 2
_BUCKET_BYTES: Final = 16 * _MARK_BYTES
_PLACE_BYTES: Final = 4


class Sketch:
    """Which hashes were added: two bytes of each, in one of many buckets, whose oldest one goes.

    A hash is as good as random. One that was not added is taken for one that was with a chance of
    16 / 65,536: 0.024 %. Of `num_hashes` a half were added later: then 99 % are still known.
    """

    def __init__(self, num_hashes: int) -> None:
        self._num_buckets = max(1, num_hashes * _MARK_BYTES // _BUCKET_BYTES)
        self._marks = bytearray(self._num_buckets * _BUCKET_BYTES)

    @property
    def num_bytes(self) -> int:
        """What it takes, however much is added."""
        return len(self._marks)

    def add(self, block_hash: bytes, kind: int = 0) -> None:
        """It is its bucket's newest one."""
        marks, mark, start = self._marks, block_hash[-_MARK_BYTES:], self._bucket(block_hash, kind)
        oldest = self._find(mark, start)
        if oldest < 0:
            oldest = start + _BUCKET_BYTES - _MARK_BYTES
        marks[start : oldest + _MARK_BYTES] = mark + marks[start:oldest]

    def has(self, block_hash: bytes, kind: int = 0) -> bool:
        """Whether it was added, and not too long ago; see above."""
        return self._find(block_hash[-_MARK_BYTES:], self._bucket(block_hash, kind)) >= 0

    def _bucket(self, block_hash: bytes, kind: int) -> int:
        """Where its bucket begins."""
        place = int.from_bytes(block_hash[:_PLACE_BYTES], "little") + kind
        return place % self._num_buckets * _BUCKET_BYTES

    def _find(self, mark: bytes, start: int) -> int:
        """Where a mark lies in a bucket; -1: nowhere."""
        end = start + _BUCKET_BYTES
        found = self._marks.find(mark, start, end)
        while found > 0 and found % _MARK_BYTES:  # by chance across two marks
            found = self._marks.find(mark, found + 1, end)
        return found


class Losses:
    """The last ones of a pool, and a sketch of those before."""

    def __init__(self, num_blocks: int, clock: Callable[[], float]) -> None:
        self._most = _LOSSES_A_BLOCK * num_blocks
        self._clock = clock
        self._losses: OrderedDict[tuple[bytes, int], tuple[float, Loss, str]] = OrderedDict()
        self._before = Sketch(min(_SKETCHED_A_BLOCK * num_blocks, _MOST_SKETCHED))

    def add(self, block_hash: bytes, why: Loss, kind: int = 0, by: str = "") -> None:
        """What is found by this hash is lost; whatever was lost by it before is forgotten."""
        self._losses.pop((block_hash, kind), None)
        self._losses[block_hash, kind] = self._clock(), why, by
        if len(self._losses) > self._most:
            oldest, _ = self._losses.popitem(last=False)
            self._before.add(*oldest)

    def fate(self, block_hash: bytes, kind: int = 0) -> BlockFate:
        """What is known of a block that is not there."""
        loss = self._losses.get((block_hash, kind))
        if loss is not None:
            when, why, by = loss
            return BlockFate("evicted", self._clock() - when, why, by)
        if not self._before.has(block_hash, kind):
            return BlockFate("never_seen")
        oldest = next(iter(self._losses.values()), None)
        return BlockFate("lost_long_ago", 0.0 if oldest is None else self._clock() - oldest[0])
