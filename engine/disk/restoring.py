"""Brings blocks back from disk for a request that is about to come to the scheduler.

The request waits beside the scheduler, so nobody waits for it; and only as long as computing the
same tokens would take. The blocks are taken for it and filled by a thread, a portion at a time.
They become findable in the order of their chain, one kind after the other, once each is known to
hold what was written: who reads them finds hits like any others.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

from engine.api import EngineRequest
from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.hashing import Extras, parent_hash
from engine.blocks.partial_hits import Place, place
from engine.blocks.table import BlockTable
from engine.disk.chain import Chain, Part, Plan
from engine.disk.files import DamagedFile, read_blocks
from engine.disk.folder import Folder, KeptFile
from engine.disk.memory import BlockMemory, Landing
from engine.disk.shelf import Shelf
from engine.schedule.scheduler import Scheduler
from engine.system.fair_threads import FairThreads

PORTION_BYTES: Final = 8 << 20
"""Read by one call of a thread."""
LONGEST_WAIT_SECONDS: Final = 5.0
"""For a disk, where it is not known how long computing takes."""
_HASHED_BLOCKS: Final = 512
"""By one call, all requests together: half a millisecond."""
_MOST_BLOCKS: Final = 1024
"""Looked up and taken at once for a request, if any number of them is of use."""
_READ_SECONDS_A_BYTE: Final = 1e-9
"""Until it is known better."""
_WEIGHT: Final = 0.2
"""Of a new observation of that."""


@dataclass(slots=True, eq=False)
class _Portion:
    """Blocks of one file, and so of one kind, that a thread fills."""

    file: KeptFile
    kind: int
    indices: range
    """Of what the chain lacks."""
    landing: Landing
    read: Future[float]


@dataclass(slots=True, eq=False)
class Restore:
    """A chain's blocks on their way from disk, for one tenant."""

    terms: LeaseTerms
    """Of the request that has them read."""
    chain: Chain
    prompt: list[int]
    extras: Extras
    """See `BlockTable`."""
    plan: Plan
    blocks: list[int]
    """To be filled with what the plan lacks."""
    coming: set[bytes]
    """The names of that."""
    num_bytes: int
    portions: deque[_Portion] = field(default_factory=deque)
    is_sound: bool = True
    """Whether what is to come continues what is there, and may be found."""

    @property
    def held(self) -> list[int]:
        """Of the pool: what it goes on from, without which the others would be of no use, too."""
        return [*self.plan.held, *self.blocks]

    def place(self, number: int, block_size: int) -> Place:
        """Where a block of the chain stands."""
        tokens = self.prompt[number * block_size : (number + 1) * block_size]
        key = self.chain.key_of(number) + self.extras.of(number, block_size)
        return place(key, parent_hash(self.chain.hashes, number), tokens)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request before the scheduler."""

    request: EngineRequest
    table: BlockTable
    since: float
    restore: Restore | None = None
    deadline: float = 0.0
    is_ready: bool = False


class Restorer:
    """Requests that wait for their blocks, and the blocks."""

    def __init__(
        self,
        scheduler: Scheduler,
        memory: BlockMemory,
        shelf: Shelf,
        folder: Folder,
        on_use: Callable[[KeptFile], None],
        on_damage: Callable[[KeptFile, Exception], None],
    ) -> None:
        """`on_use` and `on_damage` are told of each file that was read, or could not be."""
        self.num_restored_pages = 0
        """Read from disk, and findable since."""
        self._scheduler = scheduler
        self._lifecycle = scheduler.lifecycle
        self._pool = scheduler.pool
        self._memory = memory
        self._bytes = [kind.pages * memory.page_bytes for kind in self._pool.kinds]
        """Of a block of each kind."""
        self._forgets = any(kind.forgets for kind in self._pool.kinds)
        self._shelf = shelf
        self._folder = folder
        self._on_use = on_use
        self._on_damage = on_damage
        self._reads: FairThreads[float] = FairThreads(3, "kept")
        self._waiting: dict[str, _Waiting] = {}
        self._restores: list[Restore] = []
        self._seconds_a_byte = _READ_SECONDS_A_BYTE

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to advance."""
        return bool(self._waiting or self._restores)

    @property
    def awaited(self) -> list[Future[float]]:
        """What there is nothing to do before: of each chain, what comes first."""
        if any(one.restore is None for one in self._waiting.values()):
            return []
        return [restore.portions[0].read for restore in self._restores]

    def submit(self, request: EngineRequest) -> bool:
        """Let a request wait for its blocks if its chain's first one is on disk.

        Where no layer needs that one for long, there is no telling before the chain is hashed.
        """
        if not len(self._shelf) or request.sampling.prompt_logprobs is not None:
            return False
        table = self._scheduler.new_table(request)()
        table.begin(len(request.prompt))
        table.hash_ahead(request.prompt, 1)
        hashes = table.prefix_hashes(request.prompt[: self._lifecycle.block_size + 1])
        if not hashes:
            return False
        chain = Chain(request, hashes, self._lifecycle.tiers, self._shelf)
        if not self._pool.kinds[0].forgets and not chain.is_on_disk(0):
            return False
        self._waiting[request.request_id] = _Waiting(request, table, time.monotonic())
        return True

    def advance(self) -> None:
        """Do a little of what there is to do."""
        for restore in list(self._restores):
            self._take(restore)
        left, now = _HASHED_BLOCKS, time.monotonic()
        for one in self._waiting.values():
            prompt = one.request.prompt
            left -= one.table.hash_ahead(prompt, left)
            if one.restore is None and not one.is_ready and not one.table.num_unhashed(prompt):
                self._begin(one)
            one.is_ready |= one.restore is not None and now > one.deadline

    def ready(self) -> list[str]:
        """The requests that need not wait any more; they are forgotten here."""
        found = [name for name, one in self._waiting.items() if one.is_ready]
        for name in found:
            del self._waiting[name]
        return found

    def leave(self, request_id: str) -> None:
        """A request waits no longer. Unknown ones are fine."""
        self._waiting.pop(request_id, None)

    def forget_tenant(self, tenant: str) -> None:
        """Let nobody find what is still to come for a tenant, for which nobody waits any more."""
        for restore in self._restores:
            restore.is_sound = restore.is_sound and restore.terms.tenant != tenant
        for one in self._waiting.values():
            one.is_ready |= one.request.tenant == tenant

    def close(self) -> None:
        """Let go of everything."""
        for restore in self._restores:
            restore.is_sound = False
        while self._restores:
            for restore in list(self._restores):
                self._take(restore)
            time.sleep(0.001)

    def _begin(self, one: _Waiting) -> None:
        """Find out what a request can have from disk, and have it read if that is worth while."""
        hashes = one.table.prefix_hashes(one.request.prompt)
        coming = [restore.coming for restore in self._restores if restore.is_sound]
        chain = Chain(one.request, hashes, self._lifecycle.tiers, self._shelf, coming)
        first, most = chain.num_ready, len(hashes)
        one.deadline = one.deadline or one.since + self._computing_seconds(first, most)
        end = chain.longest(most if self._forgets else min(most, first + _MOST_BLOCKS))
        one.restore = self._bring(one, chain, end) if end > first else None
        one.is_ready = one.restore is None

    def _bring(self, one: _Waiting, chain: Chain, end: int) -> Restore | None:
        """Have the first `end` blocks of a chain brought back, unless somebody does already."""
        plan = chain.plan(end)
        if plan.coming:
            return self._under_way(plan.coming)
        if not self._is_faster(chain.num_ready, end, self._size(plan.absent)):
            return None
        fitting = self._fitting(one.request.tenant, chain, plan, end)
        return self._start(one, chain, fitting) if fitting.absent else None

    def _under_way(self, names: list[bytes]) -> Restore:
        """Who reads one of these blocks."""
        running = (restore for restore in self._restores if restore.is_sound)
        return next(one for one in running if not one.coming.isdisjoint(names))

    def _start(self, one: _Waiting, chain: Chain, plan: Plan) -> Restore:
        """Take blocks for what a chain lacks in memory, and have it read."""
        tenant, terms = one.request.tenant, self._scheduler.lease_terms(one.request)
        self._pool.acquire(plan.held)
        blocks: list[int] = []
        for kind, count in sorted(Counter(part.kind for part in plan.absent).items()):
            blocks += self._pool.allocate(count, tenant, kind)
        self._lifecycle.transfers.move_evicted(self._memory.move)
        coming, size = {part.name for part in plan.absent}, self._size(plan.absent)
        prompt, extras = one.request.prompt, one.table.extras
        restore = Restore(terms, chain, prompt, extras, plan, blocks, coming, size)
        prepared = [(own, *self._prepare(restore, own)) for own in self._portions(plan.absent)]
        # Once all are prepared: threads that read ask for the interpreter's lock all the time.
        for own, landing, work in prepared:
            first, read = plan.absent[own.start], self._reads.submit(tenant, work)
            restore.portions.append(_Portion(first.spot.file, first.kind, own, landing, read))
        self._restores.append(restore)
        self._lifecycle.tiers.incoming += restore.held
        return restore

    def _portions(self, parts: list[Part]) -> Iterator[range]:
        """What is read by one call each, of one file."""
        start = 0
        for end in range(1, len(parts) + 1):
            first = parts[start]
            is_over = end == len(parts) or parts[end].spot.file is not first.spot.file
            if is_over or end - start == max(1, PORTION_BYTES // self._bytes[first.kind]):
                yield range(start, end)
                start = end

    def _prepare(self, restore: Restore, own: range) -> tuple[Landing, Callable[[], float]]:
        parts = restore.plan.absent[own.start : own.stop]
        blocks = restore.blocks[own.start : own.stop]
        file, key = parts[0].spot.file, restore.chain.key_of(parts[0].number)
        landing = self._memory.landing(list(map(self._pool.pages_of, blocks)))
        wanted = [(part.spot.number, part.name) for part in parts]
        return landing, partial(_timed_read, file, key, wanted, landing)

    def _take(self, restore: Restore) -> None:
        """Make findable what has come of a chain; behind its last portion, let go of its blocks."""
        while restore.portions:
            portion = restore.portions[0]
            if not restore.is_sound:
                portion.read.cancel()
            if not portion.read.done():
                return
            restore.portions.popleft()
            if restore.is_sound:
                self._land(restore, portion)
        self._restores.remove(restore)
        self._pool.release(restore.held)
        held = (other.held for other in self._restores)
        self._lifecycle.tiers.incoming = list(chain.from_iterable(held))
        for one in self._waiting.values():
            if one.restore is restore:
                one.restore = None  # there may be more of its chain

    def _land(self, restore: Restore, portion: _Portion) -> None:
        error = portion.read.exception()
        if error is not None:
            restore.is_sound = False
            assert isinstance(error, (DamagedFile, OSError)), error
            self._on_damage(portion.file, error)
            return
        portion.landing.land()
        kind, hashes = portion.kind, list[bytes]()
        observed = portion.read.result() / (len(portion.indices) * self._bytes[kind])
        self._seconds_a_byte += _WEIGHT * (observed - self._seconds_a_byte)
        for index in portion.indices:
            number = restore.plan.absent[index].number
            where = restore.place(number, self._lifecycle.block_size)
            hashes.append(restore.chain.hashes[number])
            self._pool.register(restore.blocks[index], hashes[-1], where, kind=kind)
            self._lifecycle.tiers.fresh.discard(restore.blocks[index])  # it is there
        # To find them is a use, from which on the leases last that they had: nobody else's.
        terms = restore.terms
        if self._folder.may_be_of(terms.tenant, portion.file):
            terms = replace(terms, seconds=max(portion.file.head.lease_seconds, terms.seconds))
        self._pool.lease(((one, kind) for one in hashes), terms)
        self.num_restored_pages += len(hashes) * self._pool.kinds[kind].pages
        self._on_use(portion.file)

    def _fitting(self, tenant: str, chain: Chain, plan: Plan, end: int) -> Plan:
        """The plan for the first `end` blocks of a chain, or for as many of them as there are pages
        for, beside those that running requests are to have.
        """
        spare, kinds = self._lifecycle.headroom(self._lifecycle.running.values()), self._pool.kinds

        def is_too_much(plan: Plan) -> bool:
            pages = sum(kinds[part.kind].pages for part in plan.absent)
            fits = self._pool.can_allocate(pages + spare, tenant, plan.held)
            return bool(plan.coming) or not fits

        def shorter(most: int) -> Plan:
            return chain.plan(chain.longest(most))

        if not is_too_much(plan):
            return plan
        limits = range(chain.num_ready + 1, end)
        most = bisect_left(limits, True, key=lambda limit: is_too_much(shorter(limit)))
        return shorter(chain.num_ready + most)

    def _computing_seconds(self, first: int, end: int) -> float:
        size = self._lifecycle.block_size
        seconds = self._scheduler.pace.seconds(first * size, (end - first) * size)
        return LONGEST_WAIT_SECONDS if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)

    def _is_faster(self, first: int, end: int, num_bytes: int) -> bool:
        """Whether so much is read, behind what is to be read already, sooner than blocks number
        `first ... end` are computed."""
        ahead = sum(restore.num_bytes for restore in self._restores)
        reading = (ahead + num_bytes) * self._seconds_a_byte
        return reading < self._computing_seconds(first, end)

    def _size(self, parts: list[Part]) -> int:
        """In bytes."""
        return sum(self._bytes[part.kind] for part in parts)


def _timed_read(
    file: KeptFile, key: bytes, wanted: list[tuple[int, bytes]], landing: Landing
) -> float:
    """Read blocks to where they land; returns how many seconds that has taken."""
    start = time.perf_counter()
    read_blocks(file.path, key, wanted, landing.targets)
    return time.perf_counter() - start
