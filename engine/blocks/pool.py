"""The block pool: which blocks are free, in use or cached, and which cached block holds what.

A block is *free* (no reference, no hash), *in use* (referenced) or *cached* (no reference, still
findable by its hash until its memory is needed). Its owner is the tenant that had it computed. The
pool counts; it never touches a tensor.

It takes some pages, as its kind says (`engine.api.kinds`), any that are free, and its number is
that of the first of them. Where there is one kind, whose blocks are a page each, blocks are pages.
What the pool counts, and is asked for, is pages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.api import EVERYTHING, Kind, Loss, block_pages
from engine.blocks.eviction.leases import Leases, LeaseTerms
from engine.blocks.eviction.policy import Eviction
from engine.blocks.eviction.queue import EvictionQueue
from engine.blocks.eviction.worth import Purpose
from engine.blocks.listeners import Listener
from engine.blocks.partial_hits import Place


class InvariantError(AssertionError):
    """The pool's books do not add up: a bug, never a user's doing."""


class BlockPool:
    """Blocks with reference counts, owners and a hash -> block map, in `num_pages` pages."""

    def __init__(
        self,
        num_pages: int,
        eviction: Eviction = "arc",
        clock: Callable[[], float] = time.monotonic,
        listener: Listener | None = None,
        kinds: Sequence[Kind] = (EVERYTHING,),
    ) -> None:
        """`clock` tells the seconds by which leases end."""
        if num_pages < 0:
            raise ValueError("num_pages: must not be negative")
        self.num_pages = num_pages
        self.kinds = kinds
        self.peak_in_use = 0
        self._listener = listener or Listener()
        self._refs = [0] * num_pages
        self._owners = [""] * num_pages
        self._hashes: list[bytes | None] = [None] * num_pages
        self._by_hash: dict[bytes, int] = {}
        self._tails: set[int] = set()
        self._kinds_of = [0] * num_pages
        self._sizes = [1] * num_pages
        self._queue = EvictionQueue(num_pages, eviction, clock, self._listener, self._sizes, kinds)
        pages = np.arange(num_pages, dtype=np.int32)[:, None]
        self.pages: npt.NDArray[np.int32] = np.tile(pages, max(kind.pages for kind in kinds))
        """Of each block in use or cached, by its number: [num_pages, most pages of a block]."""
        self._block_on = list(range(num_pages))
        self.block_on: Sequence[int] = self._block_on
        """The block that each page is of; a free page's own number."""
        self.sizes: Sequence[int] = self._sizes
        """How many pages each of these blocks has."""
        self.kinds_of: Sequence[int] = self._kinds_of
        """The number of each one's kind."""
        self.references: Sequence[int] = self._refs
        """How many hold each block."""
        self.owners: Sequence[str] = self._owners
        """The tenant that had each block computed, or takes it."""
        self.hashes: Sequence[bytes | None] = self._hashes
        """What each block is findable by, tails included; see `hash_of`."""

    @property
    def block_pages(self) -> int:
        """See `engine.api.kinds.block_pages`."""
        return block_pages(self.kinds)

    @property
    def num_blocks(self) -> int:
        """For how many blocks of each kind there is memory."""
        return self.num_pages // self.block_pages

    @property
    def num_in_use(self) -> int:
        """Pages that some sequence or pin holds."""
        return self.num_pages - len(self._queue)

    @property
    def num_free(self) -> int:
        """Pages that hold nothing which can be found."""
        return self._queue.num_free

    @property
    def num_cached(self) -> int:
        """Pages that nobody holds, of blocks that can still be found by their hash."""
        return self._queue.num_cached

    @property
    def num_reserved(self) -> int:
        """Pages that the tenants' reserves may keep from others, all together."""
        return self._queue.num_reserved

    def num_cached_of(self, owner: str) -> int:
        """Of the cached pages those of blocks that `owner` had computed."""
        return self._queue.cached_of(owner)

    def count(self, blocks: Collection[int]) -> int:
        """The pages of distinct blocks."""
        if self.pages.shape[1] == 1:
            return len(blocks)
        return sum(map(self._sizes.__getitem__, blocks))

    def pages_of(self, block: int) -> list[int]:
        """Of a block in use or cached."""
        size = self._sizes[block]
        return [block] if size == 1 else self.pages[block, :size].tolist()

    def in_blocks(self, num_pages: int) -> int:
        """So much memory as a number of blocks of each kind, rounded up: for people."""
        return -(-num_pages // self.block_pages)

    def find(self, hashes: Iterable[bytes], kind: int = 0) -> list[int]:
        """The blocks of that kind of the longest prefix of `hashes` that is present."""
        found: list[int] = []
        for key in hashes if kind == 0 else (_key(one, kind) for one in hashes):
            if (block := self._by_hash.get(key)) is None:
                break
            found.append(block)
        return found

    def beside(self, block: int) -> list[int]:
        """What lies beside a findable block of the first kind: those of other kinds, as found."""
        key = self._hashes[block]
        assert key is not None, "it was found"
        return [one for n in range(1, len(self.kinds)) for one in self.find([key], n)]

    def can_allocate(
        self,
        count: int,
        owner: str,
        hits: Sequence[int] = (),
        released: Collection[Sequence[int]] = (),
    ) -> bool:
        """Whether `owner` can take `count` pages once it has acquired the blocks `hits`.

        With `released`: once the sequences that hold these blocks have given them back, too.
        """
        if not hits and not released:
            return count <= self._queue.available(owner)
        free, cached = 0, Counter[str]()
        drops = Counter(block for blocks in released for block in blocks)
        for block, dropped in drops.items():
            if self._refs[block] == dropped:
                if self._hashes[block] is None:
                    free += self._sizes[block]
                else:
                    cached[self._owners[block]] += self._sizes[block]
        for block in hits:
            if self._refs[block] == drops[block]:
                if self._queue.is_passed(block):
                    free -= self._sizes[block]
                else:
                    cached[self._owners[block]] -= self._sizes[block]
        return count <= self._queue.available(owner, free, cached)

    def allocate(self, count: int, owner: str, kind: int = 0) -> list[int]:
        """Take `count` blocks (evicting cached ones as needed), each with one reference."""
        size = self.kinds[kind].pages
        assert self.can_allocate(count * size, owner), "allocate without can_allocate"
        if count * size > self.num_free:
            self._queue.expire()
        blocks = list[int]()
        for _ in range(count):
            while self._queue.num_free < size:
                self._evict(owner)
            pages = self._queue.take(size)
            block = pages[0]
            if size > 1:
                self._place(block, pages)
            self._sizes[block] = size
            self._kinds_of[block] = kind
            self._refs[block] = 1
            self._owners[block] = owner
            blocks.append(block)
        self._listener.touched(blocks)
        self.peak_in_use = max(self.peak_in_use, self.num_in_use)
        return blocks

    def empty(self, count: int, owner: str) -> None:
        """Make `count` pages free, of the blocks whose memory `owner` would get next."""
        wanted = self.num_free + count
        assert self.can_allocate(wanted, owner), "empty without can_allocate"
        self._queue.expire()
        while self.num_free < wanted:
            self._evict(owner)

    def acquire(self, blocks: Collection[int]) -> None:
        """Add a reference to each of `blocks`, which are in use or were just returned by `find`."""
        self._listener.touched(blocks)
        for block in blocks:
            if self._refs[block] == 0:
                self._queue.remove_cached(block, self._owners[block])
            self._refs[block] += 1
        self.peak_in_use = max(self.peak_in_use, self.num_in_use)

    def release(self, blocks: Sequence[int], *, passed: bool = False) -> None:
        """Drop a reference to each of `blocks`, given in sequence order.

        The tail of a sequence goes up for eviction before its beginning: that is a useful prefix
        without its tail, and a tail alone can never be hit. What was `passed` goes before all.
        """
        self._listener.touched(blocks)
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if (key := self._hashes[block]) is None:
                    self._free(block)
                else:
                    self._queue.add_cached(block, self._owners[block], key, passed=passed)

    def keep_passed(self, blocks: Iterable[int]) -> None:
        """What was passed of `blocks` goes no sooner than others, nor is it used by that."""
        for block in blocks:
            self._queue.keep(block)

    def register(
        self,
        block: int,
        block_hash: bytes,
        where: Place | None = None,
        owner: str | None = None,
        *,
        parent: bytes | None = None,
        is_tail: bool = False,
        kind: int = 0,
        purpose: Purpose = Purpose.LAST,
    ) -> None:
        """Make the full block findable. A hash that another block holds already stays there.

        With `where`: its first tokens as well, once they are computed. With `owner`: it is this
        tenant's, whoever has allocated it. A tail is partly filled, and found by these alone. The
        hash of the `parent` is in `where`, too; a first block has none. Those of other kinds lie
        beside that of the first one; a state was left for a `purpose`.
        """
        assert self._refs[block] > 0, "only a block in use can be registered"
        assert self._hashes[block] is None, "a full block is immutable"
        key = _key(block_hash, kind)
        if key in self._by_hash:
            return
        self._hashes[block] = key
        self._by_hash[key] = block
        if is_tail:
            self._tails.add(block)
        if owner is not None:
            self._owners[block] = owner
        before = parent if where is None else where.parent_hash
        self._queue.stored(block, key, kind, before, self._owners[block], purpose)
        self._listener.stored(block, None if is_tail else block_hash, where, parent, kind)

    def hash_of(self, block: int) -> bytes | None:
        """The hash by which the full block of the first kind is found; others, and tails, have none
        that may be asked for."""
        return None if self._kinds_of[block] or block in self._tails else self._hashes[block]

    def chain_hash(self, block: int) -> bytes | None:
        """The hash by which the full block is found among those of its kind; tails have none."""
        key = None if block in self._tails else self._hashes[block]
        return key if key is None or self._kinds_of[block] == 0 else key[:-1]

    def reserve(self, owner: str, count: int) -> None:
        """Keep up to `count` cached pages of `owner` from being evicted for others."""
        self._queue.set_reserve(owner, count)

    @property
    def leases(self) -> Leases:
        """Who leases which blocks, to be read; those that are due have been ended."""
        self._queue.expire()
        return self._queue.leases

    def lease(self, hashes: Iterable[tuple[bytes, int]], terms: LeaseTerms) -> None:
        """Keep what is there of `hashes`, by kind, in sequence order, as the last to be evicted."""
        if terms.seconds or terms.tenant in self._queue.leases.tenants:
            keys = [_key(*one) for one in hashes]
            present = [self._by_hash[key] for key in keys if key in self._by_hash]
            self._listener.touched(present)
            self._queue.lease(present, terms)

    def join(self, blocks: Collection[int], worth: float) -> None:
        """See `engine.blocks.eviction.wholes`."""
        self._queue.join(blocks, worth)

    def came_back(self, hashes: Sequence[bytes], num_found: int) -> Sequence[int]:
        """See `engine.blocks.eviction.policy.Order`."""
        return self._queue.came_back(hashes, num_found)

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
            if (key := self._hashes[block]) is not None:
                is_idle = self._refs[block] == 0
                if is_idle:
                    self._queue.remove_cached(block, self._owners[block])
                self._queue.emptied(block)
                self._forget(block, key, why)
                if is_idle:
                    self._free(block)

    def check(self) -> None:
        """Verify every invariant in O(pages). Raises `InvariantError`."""
        try:
            free, cached = self._queue.contents()
        except AssertionError as error:
            raise InvariantError(str(error)) from error
        known = {block: key for block, key in enumerate(self._hashes) if key is not None}
        held = [block for block, refs in enumerate(self._refs) if refs]
        pages, on_page = list(free), self._block_on
        for block in {*held, *cached}:
            own = self.pages_of(block)
            pages += own
            _require({on_page[page] for page in own} == {block}, "a block is not on its pages")
        _require(sorted(pages) == list(range(self.num_pages)), "a page has no owner, or several")
        _require(all(self._block_on[page] == page for page in free), "a free page is of a block")
        _require(min(self._refs, default=0) >= 0, "negative references")
        _require(not cached.keys() & set(held), "a block is both held and cached")
        _require(len(free) + self.count(cached) == len(self._queue), "queue length is wrong")
        _require(cached.keys() == known.keys() - set(held), "a block is in the wrong queue")
        _require(all(self._owners[block] == own for block, own in cached.items()), "owners differ")
        _require(known == {b: key for key, b in self._by_hash.items()}, "hashes and map disagree")
        _require(all(map(known.__contains__, self._queue.leases.blocks)), "a lease of nothing")
        _require(self._tails <= known.keys(), "a tail is of nothing")

    def check_some(self, first: int, end: int) -> None:
        """Verify what can be told of blocks number `first ... end` alone, and of as many free ones.

        Raises `InvariantError`.
        """
        for block in range(first, min(end, self.num_pages)):
            refs, key = self._refs[block], self._hashes[block]
            _require(refs >= 0, f"block {block}: negative references")
            is_cached = self._queue.is_cached(block, self._owners[block])
            _require(is_cached == (refs == 0 and key is not None), f"block {block}: wrong queue")
            _require(key is None or self._by_hash.get(key) == block, f"block {block}: wrong hash")
        for page in self._queue.free_pages(first, end):
            is_free = self._refs[page] == 0 and self._hashes[page] is None
            _require(is_free, f"page {page} is not free")

    def _evict(self, owner: str) -> None:
        """Free the cached block whose memory `owner` would get next."""
        was_passed = self._queue.has_passed
        block = self._queue.evict(owner)
        key = self._hashes[block]
        assert key is not None, "what is cached has a hash"
        if not was_passed:
            self._listener.evicted(block)
        self._forget(block, key, self._queue.emptied(block), "" if was_passed else owner)
        self._free(block)

    def _place(self, block: int, pages: list[int]) -> None:
        self.pages[block, : len(pages)] = pages
        for page in pages:
            self._block_on[page] = block

    def _free(self, block: int) -> None:
        pages = self.pages_of(block)
        for page in pages if len(pages) > 1 else ():
            self._block_on[page] = page
        self._queue.add_free(pages)

    def _forget(self, block: int, key: bytes, why: Loss | None, by: str = "") -> None:
        block_hash, kind = self.chain_hash(block), self._kinds_of[block]
        self._hashes[block] = None
        del self._by_hash[key]
        self._tails.discard(block)
        self._listener.lost(block, block_hash, self._owners[block], why, kind, by)


def _key(block_hash: bytes, kind: int) -> bytes:
    """What a block is found by: those of other kinds than the first lie beside it."""
    return block_hash if kind == 0 else block_hash + bytes([kind])


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
