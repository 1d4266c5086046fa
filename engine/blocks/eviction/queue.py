"""Which unreferenced block's memory is taken next: the one order in which blocks are kept.

1. Free memory goes first.
2. Then blocks that sequences have passed: their layers have forgotten them, and a hit needs them
   only where it ends within their window, which is seldom.
3. Then other cached ones that nothing keeps, as `engine.blocks.eviction.policy` says, and `wholes`.
4. Then leased ones, of the tenant furthest over its share (`engine.blocks.eviction.leases`).
5. At last, and for their owner alone, those that its reserve protects.

Each owner's most recently used cached blocks but for passed ones, leased or not, up to its reserve,
form a protected segment that only the owner itself may evict (segmented LRU after Karedla, Love and
Wherry, IEEE Computer 1994; here one segment an owner). So the number of protected pages of an owner
is always min(reserved, cached), or less than a block more, whatever the order of the others, the
surplus; and how much somebody could take does not depend on leases. Blocks that a request or a pin
holds are not here at all. All that is counted is pages.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.api import Kind, Loss
from engine.blocks.eviction.leases import Leases, LeaseTerms
from engine.blocks.eviction.policy import Eviction, Order, make_order
from engine.blocks.eviction.wholes import WithWholes
from engine.blocks.eviction.worth import Purpose
from engine.blocks.listeners import Listener


@dataclass(slots=True)
class _Segment:
    """One owner's cached blocks, least recently used first."""

    reserved: int = 0
    protected: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    """With the blocks' keys, which the order keeps for the surplus."""
    surplus: OrderedDict[int, None] = field(default_factory=OrderedDict)
    num_protected: int = 0
    num_surplus: int = 0
    """Pages, as all that is counted."""
    num_passed: int = 0

    @property
    def num_kept(self) -> int:
        """Of blocks that were not passed."""
        return self.num_protected + self.num_surplus

    @property
    def num_cached(self) -> int:
        return self.num_kept + self.num_passed


class EvictionQueue:
    """The free pages and unreferenced blocks of a pool, and who leases which of its blocks.

    Every operation on a block takes constant time, amortised where leases end.
    """

    def __init__(
        self,
        num_pages: int,
        eviction: Eviction,
        clock: Callable[[], float],
        listener: Listener,
        sizes: Sequence[int],
        kinds: Sequence[Kind],
    ) -> None:
        """The pool's `listener` is told of blocks that nobody leases any more. `sizes` are the
        pages of each block that is not free.
        """
        self._sizes = sizes
        self._largest = max(kind.pages for kind in kinds)
        self.leases = Leases(clock, sizes)
        self._listener = listener
        self._lost: dict[int, Loss] = {}
        """Blocks that nobody leases any more, and why, if not for want of memory."""
        self._free = list(range(num_pages - 1, -1, -1))
        self._order: Order = make_order(eviction, num_pages, kinds, clock)
        self._surplus_owners: dict[int, str] = {}
        self._passed: OrderedDict[int, tuple[str, bytes]] = OrderedDict()
        """With their owners and keys, the ones that were passed first before others."""
        self._segments: dict[str, _Segment] = {}
        self._num_cached = 0
        self._num_protected = 0

    def __len__(self) -> int:
        """Pages."""
        return len(self._free) + self._num_cached

    @property
    def num_free(self) -> int:
        """Pages that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages of blocks that still hold what was computed."""
        return self._num_cached

    @property
    def num_reserved(self) -> int:
        """The sum of all reserves, used or not, each up to the end of its last block."""
        reserves = [segment.reserved for segment in self._segments.values() if segment.reserved]
        return sum(reserves) + len(reserves) * (self._largest - 1)

    def cached_of(self, owner: str) -> int:
        """How many pages the cached blocks of `owner` have."""
        segment = self._segments.get(owner)
        return 0 if segment is None else segment.num_cached

    def available(
        self, owner: str, free_change: int = 0, cached_changes: Mapping[str, int] | None = None
    ) -> int:
        """Pages that `owner` could take, once the numbers have changed as given (by owner).

        With a change, and blocks of several pages in others' reserves, it may be a little more.
        """
        own = self._segments.get(owner)
        count = len(self._free) + free_change + self._num_cached - self._num_protected
        count += 0 if own is None else own.num_protected
        for other, change in (cached_changes or {}).items():
            segment = self._segments.get(other)
            if other == owner or segment is None or not segment.reserved:
                count += change
            else:
                protected = segment.reserved + self._largest - 1
                count += max(0, segment.num_kept + change - protected) - segment.num_surplus
        return count

    def add_free(self, pages: Sequence[int]) -> None:
        """Pages of a block that holds nothing of use; the last one is the next to be taken."""
        self._free += pages

    def add_cached(self, block: int, owner: str, key: bytes, *, passed: bool = False) -> None:
        """A block that can still be found by `key`; `owner`'s most recently used one.

        `passed` ones that nobody leases are the first to go.
        """
        segment = self._segments.get(owner)
        if segment is None:
            segment = self._segments[owner] = _Segment()
        size = self._sizes[block]
        self._num_cached += size
        if passed and not self.leases.is_leased(block):
            self._passed[block] = owner, key
            segment.num_passed += size
        elif segment.reserved:
            segment.protected[block] = key
            segment.num_protected += size
            self._num_protected += size
            self._demote(owner, segment)
        else:
            self._expose(block, key, owner, segment)

    def remove_cached(self, block: int, owner: str) -> None:
        """Take a cached block out of the queue: it is in use again, or soon added as free."""
        segment, size = self._segments[owner], self._sizes[block]
        self._num_cached -= size
        if self._passed.pop(block, None) is not None:
            segment.num_passed -= size
        elif block in segment.surplus:
            self._withdraw(block, segment)
        else:
            del segment.protected[block]
            segment.num_protected -= size
            self._num_protected -= size
            self._promote(segment)
        self._order.used_again(block)
        self._drop_empty(owner, segment)

    def take(self, count: int) -> list[int]:
        """Remove and return free pages."""
        if count == 1:
            return [self._free.pop()]
        pages = self._free[: -count - 1 : -1]
        del self._free[-count:]
        return pages

    def evict(self, owner: str) -> int:
        """Remove and return the cached block whose memory `owner` gets next."""
        if self._passed:
            block, (victim, _) = self._passed.popitem(last=False)
            segment = self._segments[victim]
            segment.num_passed -= self._sizes[block]
        else:
            while not self._order:
                if self.leases.num_idle:
                    self._unlease(self.leases.break_some())
                else:
                    self._demote_oldest(owner, self._segments[owner])
            block = self._order.evict()
            victim = self._surplus_owners.pop(block)
            segment = self._segments[victim]
            del segment.surplus[block]
            segment.num_surplus -= self._sizes[block]
        self._num_cached -= self._sizes[block]
        self._drop_empty(victim, segment)
        return block

    def lease(self, blocks: Sequence[int], terms: LeaseTerms) -> None:
        """Keep findable `blocks`, in sequence order, which a tenant has just used."""
        self.expire()
        for block in self.leases.grant(reversed(blocks), terms):
            self._lost.pop(block, None)
            if block in self._surplus_owners:
                self.leases.add_idle(block, self._order.remove(block))
            self.keep(block)
        self._unlease(self.leases.cut(terms.tenant, terms.most), "own_quota")

    def expire(self) -> None:
        """End the leases that have run out."""
        self._unlease(self.leases.expire(), "expired")

    def end_leases(self, tenant: str) -> None:
        """End all leases of a tenant, also on others' blocks, which may stay for all that."""
        self._unlease(self.leases.forget(tenant))

    def stored(
        self, block: int, key: bytes, kind: int, parent: bytes | None, owner: str, purpose: Purpose
    ) -> None:
        """See `Order`."""
        self._order.stored(block, key, kind, parent, owner, purpose)

    def join(self, blocks: Collection[int], worth: float) -> None:
        """See `engine.blocks.eviction.wholes`, which most pools never have."""
        if not isinstance(self._order, WithWholes):
            self._order = WithWholes(self._order)
        self._order.join(blocks, worth)

    def came_back(self, hashes: Sequence[bytes], num_found: int) -> Sequence[int]:
        """See `Order`."""
        return self._order.came_back(hashes, num_found)

    def emptied(self, block: int) -> Loss:
        """What the block held is gone. Returns why it went, if that was for its memory."""
        self._order.lost(block)
        self.leases.drop(block)
        return self._lost.pop(block, "pressure")

    def set_reserve(self, owner: str, reserved: int) -> None:
        """Protect up to `reserved` cached pages of `owner` from now on."""
        segment = self._segments.setdefault(owner, _Segment())
        segment.reserved = reserved
        self._promote(segment)
        self._demote(owner, segment)
        self._drop_empty(owner, segment)

    def keep(self, block: int) -> None:
        """What was passed goes no sooner than others, as its owner's most recently used block."""
        if block in self._passed:
            owner, key = self._passed.pop(block)
            size = self._sizes[block]
            self._segments[owner].num_passed -= size
            self._num_cached -= size
            self.add_cached(block, owner, key)

    @property
    def has_passed(self) -> bool:
        """Whether there are passed blocks: one of them goes next."""
        return bool(self._passed)

    def is_passed(self, block: int) -> bool:
        """Whether the block is cached, and was passed."""
        return block in self._passed

    def is_cached(self, block: int, owner: str) -> bool:
        """Whether this block of `owner` is here, and not free."""
        segment = self._segments.get(owner)
        if segment is None:
            return False
        return block in segment.surplus or block in segment.protected or block in self._passed

    def free_pages(self, start: int, end: int) -> list[int]:
        """Numbers `start ... end` of the free pages."""
        return self._free[start:end]

    def contents(self) -> tuple[list[int], dict[int, str]]:
        """The free pages, and every cached block's owner. Verifies the books on the way.

        Raises `AssertionError`.
        """
        owners = {block: owner for block, (owner, _) in self._passed.items()}
        surplus: set[int] = set()
        passed = Counter[str]()
        for block, owner in owners.items():
            passed[owner] += self._sizes[block]
        for owner, segment in self._segments.items():
            assert segment.num_protected == self._count(segment.protected), "pages are miscounted"
            assert segment.num_surplus == self._count(segment.surplus), "pages are miscounted"
            assert segment.num_passed == passed[owner], "pages are miscounted"
            beyond = segment.num_protected - min(segment.reserved, segment.num_kept)
            assert 0 <= beyond < self._largest, (
                f"{owner!r} has {segment.num_protected} protected pages of {segment.reserved}"
            )
            assert segment.num_cached or segment.reserved, f"{owner!r} is kept for nothing"
            owners |= dict.fromkeys([*segment.protected, *segment.surplus], owner)
            surplus |= segment.surplus.keys()
        plain, leased = self._order.candidates(), self.leases.idle_blocks()
        assert surplus == plain.keys() | leased.keys(), "the segments and the queue disagree"
        assert not any(map(self.leases.is_leased, plain)), "a leased block is evicted too early"
        self.leases.check()
        assert self._surplus_owners == {block: owners[block] for block in surplus}
        assert not any(map(self.leases.is_leased, self._passed)), "a leased block goes too early"
        segments = self._segments.values()
        assert self._count(owners) == sum(one.num_cached for one in segments), "queued twice"
        assert self._num_cached == self._count(owners), "cached pages are miscounted"
        assert self._num_protected == sum(one.num_protected for one in segments), "protected"
        assert len(set(self._free)) == len(self._free), "a free page is queued twice"
        return list(self._free), owners

    def _count(self, blocks: Iterable[int]) -> int:
        return sum(self._sizes[block] for block in blocks)

    def _demote(self, owner: str, segment: _Segment) -> None:
        """Protect no more than is reserved, but for a part of a block."""
        while segment.num_protected > segment.reserved:
            oldest = next(iter(segment.protected))
            if segment.num_protected - self._sizes[oldest] < segment.reserved:
                break
            self._demote_oldest(owner, segment)

    def _demote_oldest(self, owner: str, segment: _Segment) -> None:
        block, key = segment.protected.popitem(last=False)
        segment.num_protected -= self._sizes[block]
        self._num_protected -= self._sizes[block]
        self._expose(block, key, owner, segment)

    def _promote(self, segment: _Segment) -> None:
        while segment.surplus and segment.num_protected < segment.reserved:
            block = next(reversed(segment.surplus))
            segment.protected[block] = self._withdraw(block, segment)
            segment.protected.move_to_end(block, last=False)
            segment.num_protected += self._sizes[block]
            self._num_protected += self._sizes[block]

    def _expose(self, block: int, key: bytes, owner: str, segment: _Segment) -> None:
        """Put a block into the surplus, as the most recently used one."""
        segment.surplus[block] = None
        segment.num_surplus += self._sizes[block]
        self._surplus_owners[block] = owner
        if self.leases.is_leased(block):
            self.leases.add_idle(block, key)
        else:
            self._order.add(block, key)

    def _withdraw(self, block: int, segment: _Segment) -> bytes:
        """Take a block out of the surplus; returns its key."""
        del segment.surplus[block], self._surplus_owners[block]
        segment.num_surplus -= self._sizes[block]
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
