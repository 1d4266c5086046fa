"""Brings blocks back from disk for a request that is about to come to the scheduler.

The request waits beside the scheduler, so nobody waits for it; and only as long as computing the
same tokens would take. The blocks are taken for it and filled by a thread, a portion at a time.
They become findable in the order of their chain, once each is known to hold what was written: who
reads them finds hits like any others.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

from engine.api import EngineRequest
from engine.blocks.hashing import block_key, parent_hash
from engine.blocks.leases import LeaseTerms
from engine.blocks.partial_hits import Place, place
from engine.blocks.table import BlockTable
from engine.disk.files import DamagedFile, block_name, name_key, read_blocks
from engine.disk.folder import Folder, KeptFile
from engine.disk.memory import BlockMemory, Landing
from engine.disk.shelf import Shelf, Spot
from engine.schedule.scheduler import Scheduler
from engine.system.fair_threads import FairThreads

PORTION_BYTES: Final = 8 << 20
"""Read by one call of a thread."""
LONGEST_WAIT_SECONDS: Final = 5.0
"""For a disk, where it is not known how long computing takes."""
_HASHED_BLOCKS: Final = 512
"""By one call, all requests together: half a millisecond."""
_MOST_BLOCKS: Final = 1024
"""Looked up and taken at once for a request."""
_READ_SECONDS_A_BYTE: Final = 1e-9
"""Until it is known better."""
_WEIGHT: Final = 0.2
"""Of a new observation of that."""


@dataclass(slots=True, eq=False)
class _Portion:
    """Blocks of one file that a thread fills."""

    file: KeptFile
    indices: range
    """Of the chain's blocks."""
    landing: Landing
    read: Future[float]


@dataclass(slots=True, eq=False)
class Restore:
    """A chain's blocks on their way from disk, for one tenant."""

    terms: LeaseTerms
    """Of the request that has them read."""
    hashes: list[bytes]
    """Of the chain."""
    targets: dict[int, tuple[int, Place]]
    """The blocks to be filled, and what they will hold, by their index in the chain."""
    found: list[int]
    """Blocks of the pool that the chain begins with: held, so that the others are of use."""
    portions: deque[_Portion]
    num_bytes: int
    is_sound: bool = True
    """Whether what is to come continues what is there, and may be found."""

    @property
    def held(self) -> list[int]:
        """In the order of the chain."""
        return [*self.found, *(block for block, _ in self.targets.values())]


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
        self.num_restored = 0
        """Blocks."""
        self._scheduler = scheduler
        self._lifecycle = scheduler.lifecycle
        self._pool = scheduler.pool
        self._memory = memory
        self._block_bytes = memory.block_bytes
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
        """Let a request wait for its blocks if its chain's first one is on disk."""
        if not len(self._shelf) or request.sampling.prompt_logprobs is not None:
            return False
        table = self._scheduler.new_table(request)()
        table.begin(len(request.prompt))
        table.hash_ahead(request.prompt, 1)
        hashes = table.prefix_hashes(request.prompt[: self._lifecycle.block_size + 1])
        if not self._spots(request, hashes, 0):
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
        found = self._pool.find(hashes)
        first = len(found) + len(self._lifecycle.tiers.host.find(hashes[len(found) :]))
        one.restore = self._under_way(hashes, first)
        spots = self._spots(one.request, hashes, first) if one.restore is None else []
        one.deadline = one.deadline or one.since + self._computing_seconds(first, len(hashes))
        if spots and self._is_faster(first, len(spots)):
            room = self._room(one.request.tenant, found, len(spots))
            if room:
                one.restore = self._start(one, hashes, found, first, spots[:room])
        one.is_ready = one.restore is None

    def _under_way(self, hashes: list[bytes], first: int) -> Restore | None:
        """Who reads block number `first` of a chain already."""
        if first == len(hashes):
            return None
        for other in self._restores:
            if other.is_sound and first in other.targets and other.hashes[first] == hashes[first]:
                return other
        return None

    def _start(
        self,
        one: _Waiting,
        hashes: list[bytes],
        found: list[int],
        first: int,
        spots: list[Spot],
    ) -> Restore:
        """Take blocks for what is at `spots`, number `first` of the chain on, and have it read."""
        tenant, terms = one.request.tenant, self._scheduler.lease_terms(one.request)
        self._pool.acquire(found)
        blocks = self._pool.allocate(len(spots), tenant)
        self._move_evicted()
        restore = Restore(terms, hashes, {}, found, deque(), len(spots) * self._block_bytes)
        for index, block in enumerate(blocks, first):
            restore.targets[index] = block, self._place(one, hashes, index)
        most = max(1, PORTION_BYTES // self._block_bytes)
        prepared: list[tuple[KeptFile, range, Landing, Callable[[], float]]] = []
        start = 0
        for end in range(1, len(spots) + 1):
            is_over = end == len(spots) or spots[end].file is not spots[start].file
            if is_over or end - start == most:
                indices = range(first + start, first + end)
                prepared.append(self._prepare(restore, indices, spots[start:end]))
                start = end
        # Once all are prepared: threads that read ask for the interpreter's lock all the time.
        for file, indices, landing, work in prepared:
            read = self._reads.submit(tenant, work)
            restore.portions.append(_Portion(file, indices, landing, read))
        self._restores.append(restore)
        self._lifecycle.tiers.incoming += restore.held
        return restore

    def _prepare(
        self, restore: Restore, indices: range, spots: Sequence[Spot]
    ) -> tuple[KeptFile, range, Landing, Callable[[], float]]:
        file = spots[0].file
        landing = self._memory.landing([restore.targets[index][0] for index in indices])
        wanted = [(spot.number, file.head.names[spot.number]) for spot in spots]
        key = restore.targets[indices.start][1].namespace_key
        return file, indices, landing, partial(_timed_read, file, key, wanted, landing)

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
        count = len(portion.indices)
        observed = portion.read.result() / (count * self._block_bytes)
        self._seconds_a_byte += _WEIGHT * (observed - self._seconds_a_byte)
        for index in portion.indices:
            block, where = restore.targets[index]
            self._pool.register(block, restore.hashes[index], where)
        # To find them is a use, from which on the leases last that they had: nobody else's.
        terms = restore.terms
        if self._folder.may_be_of(terms.tenant, portion.file):
            terms = replace(terms, seconds=max(portion.file.head.lease_seconds, terms.seconds))
        self._pool.lease([restore.hashes[index] for index in portion.indices], terms)
        self.num_restored += count
        self._on_use(portion.file)

    def _move_evicted(self) -> None:
        """What the new blocks held may be on its way to the host: that comes first."""
        transfers = self._lifecycle.transfers
        if transfers.has_swap_outs:
            self._memory.move(transfers.take())
            transfers.settle()

    def _place(self, one: _Waiting, hashes: list[bytes], index: int) -> Place:
        size, request = self._lifecycle.block_size, one.request
        key = block_key(request.namespaces, index, size)
        tokens = request.prompt[index * size : (index + 1) * size]
        return place(key + one.table.extras, parent_hash(hashes, index), tokens)

    def _spots(self, request: EngineRequest, hashes: list[bytes], first: int) -> list[Spot]:
        """Where the blocks of a chain are, from number `first` on without a gap; a part of them
        where they are very many.
        """
        spots: list[Spot] = []
        names: dict[bytes, bytes] = {}
        for index in range(first, min(len(hashes), first + _MOST_BLOCKS)):
            key = block_key(request.namespaces, index, self._lifecycle.block_size)
            if key not in names:
                names[key] = name_key(key)
            spot = self._shelf.find(block_name(names[key], hashes[index]))
            if spot is None:
                break
            spots.append(spot)
        return spots

    def _room(self, tenant: str, found: list[int], most: int) -> int:
        """How many blocks may be taken beside those that running requests are to have."""
        spare = self._lifecycle.headroom(self._lifecycle.running.values())
        return bisect_left(
            range(1, most + 1),
            True,
            key=lambda count: not self._pool.can_allocate(count + spare, tenant, found),
        )

    def _computing_seconds(self, first: int, end: int) -> float:
        size = self._lifecycle.block_size
        seconds = self._scheduler.pace.seconds(first * size, (end - first) * size)
        return LONGEST_WAIT_SECONDS if seconds is None else min(seconds, LONGEST_WAIT_SECONDS)

    def _is_faster(self, first: int, count: int) -> bool:
        """Whether blocks are read, behind what is to be read already, sooner than computed."""
        ahead = sum(restore.num_bytes for restore in self._restores)
        reading = (ahead + count * self._block_bytes) * self._seconds_a_byte
        return reading < self._computing_seconds(first, first + count)


def _timed_read(
    file: KeptFile, key: bytes, wanted: list[tuple[int, bytes]], landing: Landing
) -> float:
    """Read blocks to where they land; returns how many seconds that has taken."""
    start = time.perf_counter()
    read_blocks(file.path, key, wanted, landing.targets)
    return time.perf_counter() - start
