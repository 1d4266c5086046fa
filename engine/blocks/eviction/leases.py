"""Leases: blocks that tenants have asked to be kept until a time, and are charged for.

A lease is one tenant's on one block, and lasts for so many seconds after that tenant's last use of
it. Several tenants may lease one block; it is kept while one of them does. What that means for the
order in which blocks are evicted is in `engine.blocks.eviction`. All that is counted is pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

_TENANTS_A_LEASE: Final = 16
"""For so many tenants with leases one more is broken at a time: looking for whose takes as long."""
_FORMER_TENANTS: Final = 1024
"""Tenants without leases whose counts are remembered."""
_SPARE_ENTRIES: Final = 64
"""Ends of leases that are over; beyond these, and one a lease, the heap is made anew."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How a tenant's request leases what it has used."""

    tenant: str
    seconds: float = 0.0
    """After the last use; 0: only the leases that it has are renewed, as they were."""
    most: int | None = None
    """Pages that the tenant may lease, all of its requests together; beyond that its least
    recently renewed leases end."""
    weight: float = 1.0
    """The tenant's share beside others'."""


@dataclass(slots=True)
class _Lease:
    seconds: float
    until: float
    entry: int
    """Which one of the heap of ends it is in, at a time no later than it ends."""


@dataclass(slots=True)
class TenantLeases:
    """One tenant's leases, and what has become of them."""

    weight: float = 1.0
    leases: OrderedDict[int, _Lease] = field(default_factory=OrderedDict)
    """By block, the least recently renewed first."""
    num_pages: int = 0
    """Of these blocks."""
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Of these blocks: the ones up for eviction, least recently used first."""
    page_seconds: float = 0.0
    """Leased pages times the seconds for which they were, up to `since`."""
    since: float = 0.0
    begun: float = 0.0
    """When this record, and so its counts, began: tenants that were forgotten have a new one."""
    num_broken: int = 0
    """Leases that ended early because nothing else was left to evict."""
    num_cut: int = 0
    """Leases that ended early because the tenant had too many."""

    def add(self, other: TenantLeases) -> None:
        """Count what another one's have been, too."""
        self.page_seconds += other.page_seconds
        self.num_broken += other.num_broken
        self.num_cut += other.num_cut


class Leases:
    """Every lease that runs, by tenant and block. Changes take amortised constant time, but for
    the heap by which ends are found in their order.

    Methods that end leases return the blocks that nobody leases any more.
    """

    def __init__(self, clock: Callable[[], float], sizes: Sequence[int]) -> None:
        """`clock` tells seconds, and never goes back. `sizes` are the pages of each block."""
        self._clock = clock
        self._sizes = sizes
        self._tenants: dict[str, TenantLeases] = {}
        self._lessees: dict[int, tuple[str, ...]] = {}
        self._ends: list[tuple[float, int, str, list[int]]] = []
        """A heap of (when to look at them, entry, tenant, blocks), also of leases that are over."""
        self._num_noted = 0
        """Blocks in it."""
        self._entries = count()
        self._num_leases = 0
        self._keys: dict[int, bytes] = {}
        """Leased blocks that are up for eviction, and by what they are found."""
        self._idle: dict[str, None] = {}
        """Tenants that lease some of these."""
        self._dropped = TenantLeases()
        """The counts of tenants that are not known any more."""
        self._former: OrderedDict[str, None] = OrderedDict()
        """Tenants that had leases, the ones that have had none for longest first."""

    @property
    def num_blocks(self) -> int:
        """Blocks that somebody leases."""
        return len(self._lessees)

    @property
    def blocks(self) -> Collection[int]:
        """Which these are."""
        return self._lessees.keys()

    @property
    def num_idle(self) -> int:
        """Of these: the ones that are up for eviction."""
        return len(self._keys)

    @property
    def tenants(self) -> Collection[str]:
        """Who has leases, or had some."""
        return self._tenants.keys()

    def of(self, tenant: str) -> TenantLeases:
        """A tenant's leases until now, to be read; those that are due have been ended."""
        found = self._tenants.get(tenant)
        if found is None:
            return TenantLeases()
        self._count(found, self._clock())
        return found

    def totals(self) -> TenantLeases:
        """The counts of all tenants together, of those that were forgotten, too."""
        now, total = self._clock(), replace(self._dropped)
        for record in self._tenants.values():
            self._count(record, now)
            total.add(record)
        return total

    def is_leased(self, block: int) -> bool:
        """Whether somebody leases the block, as far as the ends of leases have been looked for."""
        return block in self._lessees

    def longest(self, block: int) -> tuple[float, float, str] | None:
        """Of the leases on a block the one that ends last: the seconds that are left of it, those
        that it lasts after a use, and whose it is. `None`: nobody leases the block.
        """
        now, lessees = self._clock(), self._lessees.get(block, ())
        found = ((self._tenants[tenant].leases[block], tenant) for tenant in lessees)
        running = [(one.until - now, one.seconds, own) for one, own in found if one.until > now]
        return max(running, default=None)

    def is_idle(self, block: int) -> bool:
        """Whether the block is leased and up for eviction."""
        return block in self._keys

    def idle_blocks(self) -> dict[int, bytes]:
        """Every leased block that is up for eviction, with its key."""
        return dict(self._keys)

    def grant(self, blocks: Iterable[int], terms: LeaseTerms) -> list[int]:
        """Lease `blocks`, which the tenant has just used, or renew its leases of them.

        Those that come first count as less recently renewed. Returns what was not leased before.
        """
        now, record = self._clock(), self._tenants.get(terms.tenant)
        if record is None:
            if not terms.seconds:
                return []
            record = self._tenants[terms.tenant] = TenantLeases(since=now, begun=now)
            self._remember(terms.tenant)
        record.weight = terms.weight
        self._count(record, now)
        begun: list[int] = []
        new: list[int] = []
        until, entry, alone = now + terms.seconds, next(self._entries), (terms.tenant,)
        for block in blocks:
            lease = record.leases.get(block)
            if lease is not None:
                lease.seconds = terms.seconds or lease.seconds
                lease.until = max(lease.until, now + lease.seconds)
                record.leases.move_to_end(block)
            elif terms.seconds:
                record.leases[block] = _Lease(terms.seconds, until, entry)
                record.num_pages += self._sizes[block]
                begun.append(block)
                others = self._lessees.get(block)
                if others is None:
                    new.append(block)
                    self._lessees[block] = alone
                else:
                    self._lessees[block] = others + alone
                    self._expose(terms.tenant, record, block)
        if begun:
            self._former.pop(terms.tenant, None)
            self._num_leases += len(begun)
            self._note(until, entry, terms.tenant, begun)
        return new

    def expire(self) -> list[int]:
        """End the leases that have run out."""
        freed: list[int] = []
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, entry, tenant, blocks = heappop(self._ends)
            self._num_noted -= len(blocks)
            record = self._tenants.get(tenant)
            if record is None:
                continue
            renewed: dict[float, list[int]] = {}
            for block in self._running(record, entry, blocks):
                lease = record.leases[block]
                if lease.until > now:
                    renewed.setdefault(lease.until, []).append(block)
                else:
                    freed += self._end(tenant, record, block, lease.until)
            for until, left in renewed.items():
                again = next(self._entries)
                for block in left:
                    record.leases[block].entry = again
                self._note(until, again, tenant, left)
        return freed

    def cut(self, tenant: str, most: int | None) -> list[int]:
        """End a tenant's least recently renewed leases beyond `most`."""
        freed: list[int] = []
        record, now = self._tenants.get(tenant), self._clock()
        while record is not None and most is not None and record.num_pages > most:
            freed += self._end(tenant, record, next(iter(record.leases)), now)
            record.num_cut += 1
        return freed

    def break_some(self) -> list[int]:
        """End leases on blocks that are up for eviction, of the tenant furthest over its share.

        That is whose leased memory, divided by its weight, is most. What it has used least
        recently goes first. Where many tenants have leases, some are ended at a time.
        """
        tenant = max(self._idle, key=self._excess)
        record, now = self._tenants[tenant], self._clock()
        freed: list[int] = []
        for _ in range(min(len(record.idle), 1 + len(self._idle) // _TENANTS_A_LEASE)):
            freed += self._end(tenant, record, next(iter(record.idle)), now)
            record.num_broken += 1
        return freed

    def drop(self, block: int) -> None:
        """What a block holds is not to be found any more: end its leases."""
        now = self._clock()
        for tenant in self._lessees.get(block, ()):
            self._end(tenant, self._tenants[tenant], block, now)

    def forget(self, tenant: str) -> list[int]:
        """End a tenant's leases, and forget what is known of it."""
        freed: list[int] = []
        record, now = self._tenants.get(tenant), self._clock()
        if record is not None:
            for block in list(record.leases):
                freed += self._end(tenant, record, block, now)
            self._drop(tenant)
        return freed

    def add_idle(self, block: int, key: bytes) -> None:
        """A leased block is up for eviction; the most recently used one."""
        self._keys[block] = key
        for tenant in self._lessees[block]:
            self._tenants[tenant].idle[block] = None
            self._idle[tenant] = None

    def remove_idle(self, block: int) -> bytes:
        """A block is up for eviction no more, or not leased any more; returns its key."""
        for tenant in self._lessees.get(block, ()):
            self._withdraw(tenant, self._tenants[tenant], block)
        return self._keys.pop(block)

    def check(self) -> None:
        """Verify the books in linear time. Raises `AssertionError`."""
        lessees: dict[int, set[str]] = {}
        ends = {entry: (when, tenant, set(blocks)) for when, entry, tenant, blocks in self._ends}
        assert self._num_noted == sum(len(end[3]) for end in self._ends), "ends are miscounted"
        for tenant, record in self._tenants.items():
            for block, lease in record.leases.items():
                lessees.setdefault(block, set()).add(tenant)
                when, whose, noted = ends[lease.entry]
                assert whose == tenant, f"{tenant!r}: a lease has another one's end"
                assert block in noted, f"{tenant!r}: a lease has no end"
                assert when <= lease.until, f"a lease of {tenant!r} ends too late"
            num_pages = sum(self._sizes[block] for block in record.leases)
            assert record.num_pages == num_pages, f"{tenant!r}: leased pages are miscounted"
            idle = record.leases.keys() & self._keys.keys()
            assert record.idle.keys() == idle, f"{tenant!r}: leased blocks up for eviction"
            assert (tenant in self._idle) == bool(idle), f"{tenant!r} is looked for in vain"
            assert (tenant in self._former) != bool(record.leases), f"{tenant!r} is remembered"
        remembered = self._idle.keys() | self._former.keys()
        assert remembered <= self._tenants.keys(), "a forgotten tenant has leases"
        known = {block: set(tenants) for block, tenants in self._lessees.items()}
        assert lessees == known, "tenants and blocks disagree on leases"
        assert self._keys.keys() <= lessees.keys(), "a block is kept by nobody's lease"
        assert self._num_leases == sum(map(len, lessees.values())), "leases are miscounted"

    def _excess(self, tenant: str) -> float:
        record = self._tenants[tenant]
        return record.num_pages / record.weight

    def _expose(self, tenant: str, record: TenantLeases, block: int) -> None:
        """A tenant leases a block that another one leases, too, and that may be up for eviction."""
        if block in self._keys:
            record.idle[block] = None
            self._idle[tenant] = None

    def _note(self, when: float, entry: int, tenant: str, blocks: list[int]) -> None:
        """Look at leases when they end as things are now; a renewal is seen then."""
        heappush(self._ends, (when, entry, tenant, blocks))
        self._num_noted += len(blocks)
        if self._num_noted > _SPARE_ENTRIES + 2 * self._num_leases:
            running = []
            for then, number, whose, noted in self._ends:
                left = list(self._running(self._tenants.get(whose), number, noted))
                if left:
                    running.append((then, number, whose, left))
            self._ends, self._num_noted = running, sum(len(end[3]) for end in running)
            heapify(self._ends)

    @staticmethod
    def _running(record: TenantLeases | None, entry: int, blocks: list[int]) -> Iterator[int]:
        """Of the blocks of an entry: those whose leases are looked at by it."""
        if record is not None:
            for block in blocks:
                lease = record.leases.get(block)
                if lease is not None and lease.entry == entry:
                    yield block

    def _end(self, tenant: str, record: TenantLeases, block: int, at: float) -> list[int]:
        self._count(record, at)
        del record.leases[block]
        record.num_pages -= self._sizes[block]
        self._num_leases -= 1
        self._withdraw(tenant, record, block)
        if not record.leases:
            self._remember(tenant)
        others = tuple(other for other in self._lessees[block] if other != tenant)
        if others:
            self._lessees[block] = others
            return []
        del self._lessees[block]
        return [block]

    def _remember(self, tenant: str) -> None:
        """A tenant has no leases; of such ones only the last are known."""
        self._former[tenant] = None
        if len(self._former) > _FORMER_TENANTS:
            self._drop(next(iter(self._former)))

    def _drop(self, tenant: str) -> None:
        self._former.pop(tenant, None)
        self._dropped.add(self._tenants.pop(tenant))

    def _withdraw(self, tenant: str, record: TenantLeases, block: int) -> None:
        record.idle.pop(block, None)
        if not record.idle:
            self._idle.pop(tenant, None)

    def _count(self, record: TenantLeases, now: float) -> None:
        """Book the time since the last change, for as much as was leased."""
        record.page_seconds += record.num_pages * (now - record.since)
        record.since = now
