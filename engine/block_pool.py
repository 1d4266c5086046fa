"""The block pool: which blocks are free, in use or cached, and which cached block holds what.

A block is *free* (no reference, no hash), *in use* (referenced) or *cached* (no reference, still
findable by its hash until its memory is needed). The pool counts; it never touches a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class InvariantError(AssertionError):
    """The pool's books do not add up: a bug, never a user's doing."""


class BlockPool:
    """`num_blocks` preallocated blocks with reference counts and a hash -> block map.

    Unreferenced blocks wait in one intrusive doubly linked queue (`_next`/`_prev` index arrays
    with a sentinel at index `num_blocks`), so that a hit takes a block out of the middle in O(1).
    The queue's front is taken first: free blocks, then the least recently used cached ones.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("num_blocks: must be at least 1")
        self.num_blocks = num_blocks
        self.peak_in_use = 0
        self._refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._end = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]
        self._queued = num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free and cached ones."""
        return self._queued

    @property
    def num_in_use(self) -> int:
        """Blocks that some sequence holds."""
        return self.num_blocks - self._queued

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can still be found by their hash."""
        return sum(1 for block in self._by_hash.values() if self._refs[block] == 0)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest prefix of `hashes` that is present."""
        found: list[int] = []
        for key in hashes:
            block = self._by_hash.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def can_allocate(self, count: int, hits: Sequence[int] = ()) -> bool:
        """Whether `count` blocks remain once the blocks `hits` have been acquired."""
        return count <= self._queued - sum(1 for block in hits if self._refs[block] == 0)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks (evicting cached ones as needed), each with one reference."""
        assert self.can_allocate(count), "allocate without can_allocate"
        blocks: list[int] = []
        for _ in range(count):
            block = self._next[self._end]
            self._unlink(block)
            self._forget(block)
            self._refs[block] = 1
            blocks.append(block)
        self.peak_in_use = max(self.peak_in_use, self.num_in_use)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`, which `find` has just returned."""
        for block in blocks:
            if self._refs[block] == 0:
                self._unlink(block)
            self._refs[block] += 1
        self.peak_in_use = max(self.peak_in_use, self.num_in_use)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each of `blocks`, given in sequence order.

        The tail of a sequence goes up for eviction before its head: a head without its tail is
        still a useful prefix, a tail without its head can never be hit.
        """
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                cached = self._hashes[block] is not None
                self._link(block, after=self._prev[self._end] if cached else self._end)

    def register(self, block: int, block_hash: bytes) -> None:
        """Make the full block findable. A hash that another block holds already stays there."""
        assert self._refs[block] > 0, "only a block in use can be registered"
        assert self._hashes[block] is None, "a full block is immutable"
        if block_hash not in self._by_hash:
            self._hashes[block] = block_hash
            self._by_hash[block_hash] = block

    def forget_all(self) -> None:
        """Make no block findable any more (its contents are not to be trusted)."""
        for block in list(self._by_hash.values()):
            self._forget(block)
            if self._refs[block] == 0:
                self._unlink(block)
                self._link(block, after=self._end)

    def check(self) -> None:
        """Verify every invariant in O(blocks). Raises `InvariantError`."""
        seen: set[int] = set()
        cached_region = False
        block, previous = self._next[self._end], self._end
        while block != self._end:
            _require(block not in seen, f"block {block} is queued twice")
            _require(self._prev[block] == previous, f"block {block}: broken back link")
            _require(self._refs[block] == 0, f"block {block} is queued and in use")
            is_cached = self._hashes[block] is not None
            _require(is_cached or not cached_region, f"free block {block} behind a cached one")
            cached_region = is_cached
            seen.add(block)
            previous, block = block, self._next[block]
        _require(self._prev[self._end] == previous, "broken back link at the end")
        _require(len(seen) == self._queued, "queue length is wrong")
        for block, refs in enumerate(self._refs):
            _require(refs >= 0, f"block {block}: negative references")
            _require((refs == 0) == (block in seen), f"block {block} is neither queued nor in use")
        hashed = {block: key for block, key in enumerate(self._hashes) if key is not None}
        _require(
            hashed == {block: key for key, block in self._by_hash.items()},
            "hashes and map disagree",
        )

    def references(self) -> list[int]:
        """A copy of all reference counts, by block."""
        return list(self._refs)

    def _forget(self, block: int) -> None:
        key = self._hashes[block]
        if key is not None:
            self._hashes[block] = None
            del self._by_hash[key]

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self._queued -= 1

    def _link(self, block: int, after: int) -> None:
        behind = self._next[after]
        self._prev[block], self._next[block] = after, behind
        self._next[after] = self._prev[behind] = block
        self._queued += 1


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
