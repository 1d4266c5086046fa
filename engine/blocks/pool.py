"""The block pool: which blocks are free, in use or cached, and which cached block holds what.

A block is *free* (no reference, no hash), *in use* (referenced) or *cached* (no reference, still
findable by its hash until its memory is needed). Its owner is the tenant that had it computed. The
pool counts; it never touches a tensor.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence

from engine.api import Loss
from engine.blocks.eviction import EvictionQueue
from engine.blocks.eviction_policy import Eviction
from engine.blocks.leases import Leases, LeaseTerms
from engine.blocks.listeners import Listener
from engine.blocks.partial_hits import Place


class InvariantError(AssertionError):
    """The pool's books do not add up: a bug, never a user's doing."""


class BlockPool:
    """`num_blocks` preallocated blocks with reference counts, owners and a hash -> block map."""

    def __init__(
        self,
        num_blocks: int,
        eviction: Eviction = "arc",
        clock: Callable[[], float] = time.monotonic,
        listener: Listener | None = None,
    ) -> None:
        """`clock` tells the seconds by which leases end."""
        if num_blocks < 0:
            raise ValueError("num_blocks: must not be negative")
        self.num_blocks = num_blocks
        self.peak_in_use = 0
        self._listener = listener or Listener()
        self._refs = [0] * num_blocks
        self._owners = [""] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._tails: set[int] = set()
        self._queue = EvictionQueue(num_blocks, eviction, clock, self._listener)
        self.references: Sequence[int] = self._refs
        """How many hold each block."""
        self.owners: Sequence[str] = self._owners
        """The tenant that had each block computed, or takes it."""
        self.hashes: Sequence[bytes | None] = self._hashes
        """What each block is findable by, tails included; see `hash_of`."""

    @property
    def num_in_use(self) -> int:
        """Blocks that some sequence or pin holds."""
        return self.num_blocks - len(self._queue)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing which can be found."""
        return self._queue.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can still be found by their hash."""
        return self._queue.num_cached

    @property
    def num_reserved(self) -> int:
        """Blocks that the tenants' reserves may keep from others, all together."""
        return self._queue.num_reserved

    def num_cached_of(self, owner: str) -> int:
        """Blocks that `owner` had computed, that nobody holds and that can still be found."""
        return self._queue.cached_of(owner)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest prefix of `hashes` that is present."""
        found: list[int] = []
        for key in hashes:
            block = self._by_hash.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def can_allocate(
        self,
        count: int,
        owner: str,
        hits: Sequence[int] = (),
        released: Collection[Sequence[int]] = (),
    ) -> bool:
        """Whether `owner` can take `count` blocks once it has acquired the blocks `hits`.

        With `released`: once the sequences that hold these blocks have given them back, too.
        """
        if not hits and not released:
            return count <= self._queue.available(owner)
        free = 0
        cached: Counter[str] = Counter()
        drops = Counter(block for blocks in released for block in blocks)
        for block, dropped in drops.items():
            if self._refs[block] == dropped:
                if self._hashes[block] is None:
                    free += 1
                else:
                    cached[self._owners[block]] += 1
        for block in hits:
            if self._refs[block] == drops[block]:
                cached[self._owners[block]] -= 1
        return count <= self._queue.available(owner, free, cached)

    def allocate(self, count: int, owner: str) -> list[int]:
        """Take `count` blocks (evicting cached ones as needed), each with one reference."""
        assert self.can_allocate(count, owner), "allocate without can_allocate"
        if count > self.num_free:
            self._queue.expire()
        blocks: list[int] = []
        for _ in range(count):
            block = self._queue.take(owner)
            self._empty(block)
            self._refs[block] = 1
            self._owners[block] = owner
            blocks.append(block)
        self._listener.touched(blocks)
        self.peak_in_use = max(self.peak_in_use, self.num_in_use)
        return blocks

    def empty(self, count: int, owner: str) -> None:
        """Make `count` cached blocks free, those whose memory `owner` would get next."""
        assert self.can_allocate(self.num_free + count, owner), "empty without can_allocate"
        self._queue.expire()
        for _ in range(count):
            block = self._queue.evict(owner)
            self._empty(block)
            self._queue.add_free(block)

    def acquire(self, blocks: Collection[int]) -> None:
        """Add a reference to each of `blocks`, which are in use or were just returned by `find`."""
        self._listener.touched(blocks)
        for block in blocks:
            if self._refs[block] == 0:
                self._queue.remove_cached(block, self._owners[block])
            self._refs[block] += 1
        self.peak_in_use = max(self.peak_in_use, self.num_in_use)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each of `blocks`, given in sequence order.

        The tail of a sequence goes up for eviction before its beginning: that is a useful prefix
        without its tail, and a tail alone can never be hit.
        """
        self._listener.touched(blocks)
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                key = self._hashes[block]
                if key is None:
                    self._queue.add_free(block)
                else:
                    self._queue.add_cached(block, self._owners[block], key)

    def register(
        self,
        block: int,
        block_hash: bytes,
        where: Place | None = None,
        owner: str | None = None,
        *,
        parent: bytes | None = None,
        is_tail: bool = False,
    ) -> None:
        """Make the full block findable. A hash that another block holds already stays there.

        With `where`: its first tokens as well, once they are computed. With `owner`: it is this
        tenant's, whoever has allocated it. A tail is partly filled, and found by these alone. The
        hash of the `parent` is in `where`, too; a first block has none.
        """
        assert self._refs[block] > 0, "only a block in use can be registered"
        assert self._hashes[block] is None, "a full block is immutable"
        if block_hash in self._by_hash:
            return
        self._hashes[block] = block_hash
        self._by_hash[block_hash] = block
        if is_tail:
            self._tails.add(block)
        if owner is not None:
            self._owners[block] = owner
        self._listener.stored(block, None if is_tail else block_hash, where, parent)

    def hash_of(self, block: int) -> bytes | None:
        """The hash by which the full block is found; a tail has none that others may ask for."""
        return None if block in self._tails else self._hashes[block]

    def reserve(self, owner: str, count: int) -> None:
        """Keep up to `count` cached blocks of `owner` from being evicted for others."""
        self._queue.set_reserve(owner, count)

    @property
    def leases(self) -> Leases:
        """Who leases which blocks, to be read; those that are due have been ended."""
        self._queue.expire()
        return self._queue.leases

    def lease(self, hashes: Iterable[bytes], terms: LeaseTerms) -> None:
        """Keep what is present of `hashes`, in sequence order, as the last to be evicted."""
        if terms.seconds or terms.tenant in self._queue.leases.tenants:
            present = [self._by_hash[key] for key in hashes if key in self._by_hash]
            self._listener.touched(present)
            self._queue.lease(present, terms)

    def forget_owner(self, owner: str, keep: Container[int] = ()) -> None:
        """Make no block of `owner` but `keep` findable any more; drop its reserve and leases."""
        self._queue.set_reserve(owner, 0)
        self._queue.end_leases(owner)
        owned = (block for block, own in enumerate(self._owners) if own == owner)
        self.forget((block for block in owned if block not in keep), "deleted")

    def forget_all(self, keep: Collection[int] = ()) -> None:
        """Make no block findable but `keep` (the contents of the others are not to be trusted)."""
        self.forget(set(self._by_hash.values()).difference(keep), "deleted")

    def forget(self, blocks: Iterable[int], why: Loss | None = None) -> None:
        """Make `blocks` unfindable; those that are lost without a `why` hold nothing."""
        for block in blocks:
            key = self._hashes[block]
            if key is not None:
                if self._refs[block] == 0:
                    self._queue.remove_cached(block, self._owners[block])
                    self._queue.add_free(block)
                self._queue.emptied(block)
                self._forget(block, key, why)

    def check(self) -> None:
        """Verify every invariant in O(blocks). Raises `InvariantError`."""
        try:
            free, cached = self._queue.contents()
        except AssertionError as error:
            raise InvariantError(str(error)) from error
        _require(not cached.keys() & set(free), "a block is both free and cached")
        _require(len(free) + len(cached) == len(self._queue), "queue length is wrong")
        queued = cached.keys() | free
        for block, refs in enumerate(self._refs):
            _require(refs >= 0, f"block {block}: negative references")
            _require((refs == 0) == (block in queued), f"block {block} is neither queued nor held")
            if refs == 0:
                hashed = self._hashes[block] is not None
                _require(hashed == (block in cached), f"block {block} is in the wrong queue")
                _require(cached.get(block, self._owners[block]) == self._owners[block], "owner")
        known = {block: key for block, key in enumerate(self._hashes) if key is not None}
        _require(
            known == {block: key for key, block in self._by_hash.items()},
            "hashes and map disagree",
        )
        _require(all(map(known.__contains__, self._queue.leases.blocks)), "a lease of nothing")
        _require(self._tails <= known.keys(), "a forgotten block is a tail")

    def check_some(self, first: int, end: int) -> None:
        """Verify what can be told of blocks number `first ... end` alone, and of as many free ones.

        Raises `InvariantError`.
        """
        for block in range(first, min(end, self.num_blocks)):
            refs, key = self._refs[block], self._hashes[block]
            _require(refs >= 0, f"block {block}: negative references")
            is_cached = self._queue.is_cached(block, self._owners[block])
            _require(is_cached == (refs == 0 and key is not None), f"block {block}: wrong queue")
            _require(key is None or self._by_hash.get(key) == block, f"block {block}: wrong hash")
        for block in self._queue.free_blocks(first, end):
            is_free = self._refs[block] == 0 and self._hashes[block] is None
            _require(is_free, f"block {block} is not free")

    def _empty(self, block: int) -> None:
        """Let go of what a block holds that is queued no more."""
        key = self._hashes[block]
        if key is not None:
            self._forget(block, key, self._queue.emptied(block))

    def _forget(self, block: int, key: bytes, why: Loss | None) -> None:
        block_hash = self.hash_of(block)
        self._hashes[block] = None
        del self._by_hash[key]
        self._tails.discard(block)
        self._listener.lost(block, block_hash, self._owners[block], why)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
