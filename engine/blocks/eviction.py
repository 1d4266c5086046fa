"""Which unreferenced block's memory is taken next: the one order in which blocks are kept.

1. Free blocks go first.
2. Then cached ones that nothing keeps, as `engine.blocks.eviction_policy` says.
3. Then leased ones, of the tenant furthest over its share (`engine.blocks.leases`).
4. At last, and for their owner alone, those that its reserve protects.

Each owner's most recently used cached blocks, leased or not, up to its reserve, form a protected
segment that only the owner itself may evict (segmented LRU after Karedla, Love and Wherry, IEEE
Computer 1994; here one segment an owner). So the number of protected blocks of an owner is always
min(reserved, cached), whatever the order of the others, the surplus; and how many blocks somebody
could take does not depend on leases. Blocks that a request or a pin holds are not here at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.api import Loss
from engine.blocks.eviction_policy import Eviction, make_order
from engine.blocks.leases import Leases, LeaseTerms
from engine.blocks.listeners import Listener


@dataclass(slots=True)
class _Segment:
    """One owner's cached blocks, least recently used first."""

    reserved: int = 0
    protected: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    """With the blocks' keys, which the order keeps for the surplus."""
    surplus: OrderedDict[int, None] = field(default_factory=OrderedDict)

    @property
    def num_cached(self) -> int:
        return len(self.protected) + len(self.surplus)


class EvictionQueue:
    """The unreferenced blocks of a pool, and who leases which of its blocks.

    Every operation on a block takes constant time, amortised where leases end.
    """

    def __init__(
        self,
        num_blocks: int,
        eviction: Eviction,
        clock: Callable[[], float],
        listener: Listener,
    ) -> None:
        """The pool's `listener` is told of blocks that nobody leases any more."""
        self.leases = Leases(clock)
        self._listener = listener
        self._lost: dict[int, Loss] = {}
        """Blocks that nobody leases any more, and why, if not for want of memory."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._order = make_order(eviction, num_blocks)
        self._surplus_owners: dict[int, str] = {}
        self._segments: dict[str, _Segment] = {}
        self._num_protected = 0

    def __len__(self) -> int:
        return len(self._free) + self.num_cached

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that still hold what was computed."""
        return len(self._order) + self.leases.num_idle + self._num_protected

    @property
    def num_reserved(self) -> int:
        """The sum of all reserves, used or not."""
        return sum(segment.reserved for segment in self._segments.values())

    def cached_of(self, owner: str) -> int:
        """How many cached blocks `owner` has."""
        segment = self._segments.get(owner)
        return 0 if segment is None else segment.num_cached

    def available(
        self, owner: str, free_change: int = 0, cached_changes: Mapping[str, int] | None = None
    ) -> int:
        """Blocks that `owner` could take, once the numbers have changed as given (by owner)."""
        own = self._segments.get(owner)
        count = len(self._free) + free_change + len(self._order) + self.leases.num_idle
        count += 0 if own is None else len(own.protected)
        for other, change in (cached_changes or {}).items():
            segment = self._segments.get(other)
            if other == owner or segment is None:
                count += change
            else:
                surplus = max(0, segment.num_cached + change - segment.reserved)
                count += surplus - len(segment.surplus)
        return count

    def add_free(self, block: int) -> None:
        """A block that holds nothing of use; the next one to be taken."""
        self._order.emptied(block)
        self._free.append(block)

    def add_cached(self, block: int, owner: str, key: bytes) -> None:
        """A block that can still be found by `key`; `owner`'s most recently used one."""
        segment = self._segments.get(owner)
        if segment is None:
            segment = self._segments[owner] = _Segment()
        if segment.reserved:
            segment.protected[block] = key
            self._num_protected += 1
            self._demote(owner, segment)
        else:
            self._expose(block, key, owner, segment)

    def remove_cached(self, block: int, owner: str) -> None:
        """Take a cached block out of the queue: it is in use again, or soon added as free."""
        segment = self._segments[owner]
        if block in segment.surplus:
            self._withdraw(block, segment)
        else:
            del segment.protected[block]
            self._num_protected -= 1
            self._promote(segment)
        self._order.used_again(block)
        self._drop_empty(owner, segment)

    def take(self, owner: str) -> int:
        """Remove and return the block whose memory `owner` gets next."""
        return self._free.pop() if self._free else self.evict(owner)

    def evict(self, owner: str) -> int:
        """Remove and return the cached block whose memory `owner` gets next."""
        while not self._order:
            if self.leases.num_idle:
                self._unlease(self.leases.break_some())
            else:
                self._demote_oldest(owner, self._segments[owner])
        block = self._order.evict()
        victim = self._surplus_owners.pop(block)
        segment = self._segments[victim]
        del segment.surplus[block]
        self._drop_empty(victim, segment)
        return block

    def lease(self, blocks: Sequence[int], terms: LeaseTerms) -> None:
        """Keep findable `blocks`, in sequence order, which a tenant has just used."""
        self.expire()
        for block in self.leases.grant(reversed(blocks), terms):
            self._lost.pop(block, None)
            if block in self._surplus_owners:
                self.leases.add_idle(block, self._order.remove(block))
        self._unlease(self.leases.cut(terms.tenant, terms.most), "own_quota")

    def expire(self) -> None:
        """End the leases that have run out."""
        self._unlease(self.leases.expire(), "expired")

    def end_leases(self, tenant: str) -> None:
        """End all leases of a tenant, also on others' blocks, which may stay for all that."""
        self._unlease(self.leases.forget(tenant))

    def emptied(self, block: int) -> Loss:
        """What the block held is gone. Returns why it went, if that was for its memory."""
        self.leases.drop(block)
        return self._lost.pop(block, "pressure")

    def set_reserve(self, owner: str, reserved: int) -> None:
        """Protect up to `reserved` cached blocks of `owner` from now on."""
        segment = self._segments.setdefault(owner, _Segment())
        segment.reserved = reserved
        self._promote(segment)
        self._demote(owner, segment)
        self._drop_empty(owner, segment)

    def is_cached(self, block: int, owner: str) -> bool:
        """Whether this block of `owner` is here, and not free."""
        segment = self._segments.get(owner)
        return segment is not None and (block in segment.surplus or block in segment.protected)

    def free_blocks(self, start: int, end: int) -> list[int]:
        """Numbers `start ... end` of the free blocks."""
        return self._free[start:end]

    def contents(self) -> tuple[list[int], dict[int, str]]:
        """The free blocks, and every cached block's owner. Verifies the books on the way.

        Raises `AssertionError`.
        """
        owners: dict[int, str] = {}
        surplus: set[int] = set()
        for owner, segment in self._segments.items():
            assert len(segment.protected) == min(segment.reserved, segment.num_cached), (
                f"{owner!r} has {len(segment.protected)} protected blocks of {segment.reserved}"
            )
            assert segment.num_cached or segment.reserved, f"{owner!r} is kept for nothing"
            owners |= dict.fromkeys([*segment.protected, *segment.surplus], owner)
            surplus |= segment.surplus.keys()
        plain, leased = self._order.candidates(), self.leases.idle_blocks()
        assert surplus == plain.keys() | leased.keys(), "the segments and the queue disagree"
        assert not any(map(self.leases.is_leased, plain)), "a leased block is evicted too early"
        self.leases.check()
        assert self._surplus_owners == {block: owners[block] for block in surplus}
        assert len(owners) == self.num_cached, "a cached block is queued twice, or not counted"
        assert len(set(self._free)) == len(self._free), "a free block is queued twice"
        return list(self._free), owners

    def _demote(self, owner: str, segment: _Segment) -> None:
        while len(segment.protected) > segment.reserved:
            self._demote_oldest(owner, segment)

    def _demote_oldest(self, owner: str, segment: _Segment) -> None:
        block, key = segment.protected.popitem(last=False)
        self._num_protected -= 1
        self._expose(block, key, owner, segment)

    def _promote(self, segment: _Segment) -> None:
        while segment.surplus and len(segment.protected) < segment.reserved:
            block = next(reversed(segment.surplus))
            segment.protected[block] = self._withdraw(block, segment)
            segment.protected.move_to_end(block, last=False)
            self._num_protected += 1

    def _expose(self, block: int, key: bytes, owner: str, segment: _Segment) -> None:
        """Put a block into the surplus, as the most recently used one."""
        segment.surplus[block] = None
        self._surplus_owners[block] = owner
        if self.leases.is_leased(block):
            self.leases.add_idle(block, key)
        else:
            self._order.add(block, key)

    def _withdraw(self, block: int, segment: _Segment) -> bytes:
        """Take a block out of the surplus; returns its key."""
        del segment.surplus[block], self._surplus_owners[block]
        if self.leases.is_idle(block):
            return self.leases.remove_idle(block)
        return self._order.remove(block)

    def _unlease(self, blocks: Sequence[int], why: Loss | None = None) -> None:
        """Nobody leases `blocks` any more: what is up for eviction of them, goes next."""
        self._listener.touched(blocks)
        for block in reversed(blocks):
            if why is not None:
                self._lost[block] = why
            if self.leases.is_idle(block):
                self._order.add(block, self.leases.remove_idle(block), oldest=True)

    def _drop_empty(self, owner: str, segment: _Segment) -> None:
        if not segment.reserved and not segment.num_cached:
            self._segments.pop(owner, None)
