"""The host tier behind the pool, and what follows from what becomes of the pool's blocks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from engine.api import EVERYTHING, BlockFate, Kind, Loss
from engine.blocks.changes import Changes
from engine.blocks.eviction.policy import Eviction
from engine.blocks.evictions import Evictions
from engine.blocks.listeners import Listener, Marks
from engine.blocks.lookup import usable
from engine.blocks.losses import Losses
from engine.blocks.partial_hits import PartialHits, Place
from engine.blocks.pool import BlockPool, InvariantError
from engine.blocks.transfers import TransferQueue


class HostTier(BlockPool):
    """Blocks in host memory, by the same rules as in the pool; none if there is no memory for them.

    A *slot* holds one block, and is of its kind: it has as many pages. Cached blocks move here when
    the pool evicts them and stay findable by their hash; swapped requests leave their blocks here
    until they come back. So a slot, like a block, is free, held or cached, has an owner, and is
    evicted least recently used first. The tier counts; the copies are the step's transfers.
    """

    def __init__(self, num_pages: int, kinds: Sequence[Kind] = (EVERYTHING,)) -> None:
        self.marks = Marks(self.pages_of)
        super().__init__(num_pages, "lru", listener=self.marks, kinds=kinds)

    def take(self, owner: str, block_hash: bytes | None = None, kind: int = 0) -> int:
        """A slot for a block of `owner`, to be held until `release`; evicts cached ones.

        With `block_hash`, which is not here yet, the slot can be found by others.
        """
        assert block_hash is None or not self.find([block_hash], kind), "the block is here already"
        (slot,) = self.allocate(1, owner, kind)
        if block_hash is not None:
            self.register(slot, block_hash, kind=kind)
        return slot

    def keep(self, block_hash: bytes, owner: str, kind: int = 0) -> int | None:
        """The slot, held, that a block which the pool evicts is to be copied to.

        `None` if it is here already, which makes it the most recently used one, or if too many
        slots are held.
        """
        present = self.find([block_hash], kind)
        if present:
            self.acquire(present)
            self.release(present)
            return None
        has_room = self.can_allocate(self.kinds[kind].pages, owner)
        return self.take(owner, block_hash, kind) if has_room else None


class Tiers(Listener):
    """The pool, and the host tier behind it, which takes what the pool evicts."""

    def __init__(
        self,
        num_pages: int,
        num_host_pages: int,
        block_size: int,
        eviction: Eviction = "arc",
        clock: Callable[[], float] = time.monotonic,
        changes: Changes | None = None,
        kinds: Sequence[Kind] = (EVERYTHING,),
    ) -> None:
        """`clock` tells the seconds by which leases end. `changes`, if somebody wants to know, are
        told what hits find on the device.
        """
        self.block_size = block_size
        self.clock = clock
        self.changes = changes
        self.partial_hits = PartialHits()
        self.pool = BlockPool(num_pages, eviction, clock, self, kinds)
        self.marks = Marks(self.pool.pages_of)
        self.host = HostTier(num_host_pages, kinds)
        self.transfers = TransferQueue(self.pool, self.host)
        self.incoming: list[int] = []
        """Blocks that are held while they, or what continues them, are read from disk."""
        self.loading: list[int] = []
        """Those that are held while adapters are written into them."""
        self.fresh: set[int] = set()
        """The findable blocks that were registered since they were taken."""
        self.evictions = Evictions(clock)
        self._losses = Losses(num_pages, clock)

    @property
    def num_findable(self) -> int:
        """About how many blocks of chains can be found at once, at most: what layers that forget
        have passed of a chain is gone before its other kinds' blocks."""
        kept = sum(kind.pages for kind in self.pool.kinds if not kind.forgets)
        return self.pool.num_pages // (kept or self.pool.block_pages)

    @property
    def arriving(self) -> list[int]:
        """What is held for requests that are still to come, one entry for each reference."""
        return [*self.incoming, *self.loading] if self.loading else self.incoming

    def take_fresh(self) -> set[int]:
        """The fresh ones, once."""
        fresh, self.fresh = self.fresh, set()
        return fresh

    def fates(self, hashes: Sequence[bytes]) -> list[BlockFate]:
        """Of each block of a chain, from its first one on: whether it can be found and, where kinds
        forget, be hit; or else what is known of the loss of what is missing. As tenants may know
        it: not for whom it went, nor how fast all of them together have losses forgotten.
        """
        num_hit = len(usable(self.pool, hashes, self.block_size))
        missing = (self.miss(hashes, index) for index in range(num_hit, len(hashes)))
        return [BlockFate("present")] * num_hit + list(map(_for_tenants, missing))

    def miss(self, hashes: Sequence[bytes], index: int) -> BlockFate:
        """What is known of the first block, of whatever kind, without which none could go on behind
        number `index` of a chain, had it those before it of kinds that see everything.
        """
        num_tokens = (index + 1) * self.block_size
        lacked = [
            (one, number)
            for number, kind in enumerate(self.pool.kinds)
            for one in (kind.seen(num_tokens, self.block_size) if kind.forgets else (index,))
            if not self._is_there(hashes[one], number)
        ]
        if not lacked:
            return BlockFate("present")
        first, number = min(lacked)
        fate = self._losses.fate(hashes[first], number)
        # Of the first kind are keys, unless a model has nothing but states.
        has_keys = all(one > 0 and self.pool.kinds[one].is_state for _, one in lacked)
        if fate.state == "never_seen" and has_keys:
            return BlockFate("no_state")
        return fate

    def roughly_found(self, hashes: Sequence[bytes]) -> int:
        """About how many blocks of a chain would be hit: by a few look-ups, as if there were no
        gaps, neither in what there is of the chain nor of a window.
        """
        count = len(hashes)
        for number, kind in enumerate(self.pool.kinds):
            while seen := kind.seen(count * self.block_size, self.block_size):
                end = bisect_left(
                    seen, True, key=lambda one: not self._is_there(hashes[one], number)
                )
                is_all, count = end == len(seen), seen.start + end
                if is_all or not kind.forgets:
                    break
        return count

    def _is_there(self, block_hash: bytes, kind: int) -> bool:
        """Whether a block of a kind can be found."""
        key = [block_hash]
        return bool(self.pool.find(key, kind) or self.host.find(key, kind))

    def check(self) -> None:
        """Verify every invariant in O(blocks). Raises `InvariantError`."""
        self.pool.check()
        self.host.check()
        findable = {block for block, key in enumerate(self.pool.hashes) if key is not None}
        try:
            self.evictions.check()
            self.partial_hits.check(findable)
            assert self.fresh <= findable, "a forgotten block is fresh"
        except AssertionError as error:
            raise InvariantError(str(error)) from error

    def stored(
        self,
        block: int,
        block_hash: bytes | None,
        where: Place | None,
        parent: bytes | None,
        kind: int,
    ) -> None:
        """See `Listener`."""
        self.fresh.add(block)
        if where is not None and kind == 0:
            self.partial_hits.add(block, where)
        self.marks.touched((block,))
        if self.changes is not None:
            self.changes.stored(block, block_hash, where, parent, kind)

    def evicted(self, block: int) -> None:
        """See `Listener`: it moves to the host tier.

        What layers have passed does not. Each token of an answer passes some, so that every step
        would copy, and push out what a hit needs, for hits that end where hardly any do.
        """
        pool = self.pool
        block_hash = pool.chain_hash(block)
        if block_hash is None or not self.host.num_pages:
            return
        slot = self.host.keep(block_hash, pool.owners[block], pool.kinds_of[block])
        if slot is not None:
            self.transfers.swap_out(block, slot)
            self.host.release([slot])

    def lost(
        self, block: int, block_hash: bytes | None, owner: str, why: Loss | None, kind: int, by: str
    ) -> None:
        """See `Listener`."""
        self.fresh.discard(block)
        self.partial_hits.drop(block)
        self.marks.touched((block,))
        if self.changes is not None:
            self.changes.lost(block, block_hash, owner, why, kind, by)
        if why is None:
            return
        if by or why == "deleted":
            self.evictions.add(owner, by, why, self.pool.sizes[block])
        if block_hash is not None:
            self._losses.add(block_hash, why, kind, by)

    def touched(self, blocks: Collection[int]) -> None:
        """See `Listener`."""
        self.marks.touched(blocks)


def _for_tenants(fate: BlockFate) -> BlockFate:
    if fate.state == "lost_long_ago":
        return BlockFate(fate.state)
    return replace(fate, by="")
