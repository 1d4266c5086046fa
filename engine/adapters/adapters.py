"""Requests that wait for their adapters, and the adapters' way into the block pool.

An adapter is kept as some blocks of the first kind: found by hashes of its name, in use while
requests with it are served, and cached behind that like any others, until their memory is needed.
Its weights come from the service, which is asked for them once; they are read by a thread, stay in
the host's memory as long as that allows, and are copied into blocks by a thread, beside steps. Few
are on their way at a time, and fewer of one tenant: so much memory they take, and so much of the
machine, however many are asked for.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Final

from engine.adapters.adapter import Adapter, Arrival, Refusal, no_room
from engine.adapters.blocks import Loading, Placed, block_hash, places_of, read, write
from engine.adapters.config import BadAdapter
from engine.adapters.memory import AdapterMemory, Image
from engine.adapters.pace import Pace
from engine.api import AdapterState, EngineRequest, LoadedAdapter
from engine.disk.memory import BlockMemory
from engine.grammar.compiled import CompiledGrammar
from engine.schedule.scheduler import Scheduler
from engine.system.fair_threads import FairThreads

_log = logging.getLogger(__name__)
_MOMENT_SECONDS: Final = 0.001
"""For threads, while nothing could be computed."""
_TURNS: Final = 3
"""Of the scheduler, for a request to begin with an adapter that was loaded for it again."""
_MOST_KNOWN: Final = 4096
"""Adapters, most of them by their names alone."""


class Adapters:
    """Those of all tenants, and the requests that wait for them."""

    def __init__(
        self, scheduler: Scheduler, model: AdapterMemory, memory: BlockMemory, most_bytes: int
    ) -> None:
        """So many bytes of them stay in the host's memory, beside what is waited for."""
        self.wanted: list[bytes] = []
        """Names of those that the service is to be asked for."""
        self._tiers = scheduler.tiers
        self._pool = scheduler.pool
        self._lifecycle = scheduler.lifecycle
        self._held = scheduler.lifecycle.adapters
        self._pins = scheduler.pins
        self._model = model
        self._memory = memory
        self._most_bytes = most_bytes
        self._known: OrderedDict[bytes, Adapter] = OrderedDict()
        """The least recently used first."""
        self._busy: dict[bytes, Adapter] = {}
        """Those that somebody waits for."""
        self._new: list[Adapter] = []
        """Of these, whom nobody has looked after yet."""
        self._pace = Pace(scheduler.lifecycle)
        """Which gives these their turns, but for new ones."""
        self._placed: dict[bytes, Placed] = {}
        """By the names of those that the model knows."""
        self._kept: list[int] = []
        """Blocks of adapters that requests are to begin with soon."""
        self._turns_left = 0
        """For which that is so."""
        self._readers: FairThreads[Image] = FairThreads(2, "adapters")
        self._writers: FairThreads[None] = FairThreads(2, "adapter-pages")

    def __len__(self) -> int:
        """Adapters on their way, and whether some are kept for a while."""
        return len(self._busy) + bool(self._kept)

    @property
    def loaded(self) -> list[LoadedAdapter]:
        """Those that are in blocks."""
        return [
            LoadedAdapter(name, one.seconds)
            for name, one in self._placed.items()
            if self._pool.find([one.key])
        ]

    def submit(self, request: EngineRequest, grammar: CompiledGrammar | None) -> None:
        """Let a request wait for its adapter."""
        use = request.adapter
        assert use is not None
        one = self._wanted(use.name, request.tenant)
        one.waiting[request.request_id] = request, grammar

    def _wanted(self, name: bytes, tenant: str) -> Adapter:
        """What is known of that, which somebody waits for."""
        one = self._known.setdefault(name, Adapter(name, tenant))
        self._known.move_to_end(name)
        if name not in self._busy:
            self._busy[name] = one
            self._new.append(one)
        return one

    def abort(self, request_id: str, index: int | None) -> EngineRequest | None:
        """End a request that waits, or one sequence of it; returns it as it was, if it waits."""
        for one in self._busy.values():
            found = one.waiting.get(request_id)
            if found is not None:
                request, grammar = found
                rest = request.without(index)
                if rest is None:
                    del one.waiting[request_id]
                else:
                    one.waiting[request_id] = rest, grammar
                return request
        return None

    def bring(
        self, name: bytes, data: bytes, *, is_first: bool = False, is_last: bool = False
    ) -> None:
        """Take over a piece of an adapter: its configuration first, then its weights."""
        one = self._busy.get(name)
        if one is None:
            return
        pieces = one.delivery.take(data, is_first=is_first, is_last=is_last)
        if pieces is not None:
            one.reading = self._readers.submit(one.tenant, partial(read, self._model, pieces))

    def lack(self, name: bytes, why: str) -> Iterator[Refusal]:
        """The service cannot bring an adapter: who waits for it waits no longer."""
        one = self._busy.get(name)
        if one is not None and one.delivery.is_coming:
            yield from self._refuse(one, why)

    def states(self, names: Iterable[bytes]) -> list[AdapterState | None]:
        """What is known of adapters of these names; nothing of those that nobody has asked for."""
        return [None if one is None else self._state(one) for one in map(self._known.get, names)]

    def _state(self, one: Adapter) -> AdapterState:
        is_there = one.name in self._placed and self._found(one) == one.blocks
        return one.figures.state(on_device=is_there, in_host=one.image is not None)

    def forget_tenant(self, tenant: str) -> None:
        """Keep nothing of a tenant's that nobody waits for."""
        for name, one in list(self._known.items()):
            if one.tenant == tenant and name not in self._busy:
                del self._known[name]

    def advance(self, patience: float) -> Iterator[Arrival | Refusal]:
        """Who waits no longer, once threads had so many seconds to go on."""
        if not (self._busy or self._kept or self._held.lacking):
            return
        if patience or not self._lifecycle.running:
            self._pause(patience or _MOMENT_SECONDS)
        self._let_go()
        self._look_for_lacking()
        new, self._new = self._new, []
        for one in new:
            yield from self._begin(one)
        self._pace.begin()
        for one in list(self._pace.coming.values()):
            yield from self._advance(one)
            if one.name in self._pace.coming and one.is_idle:
                self._end(one)

    def _begin(self, one: Adapter) -> Iterator[Arrival | Refusal]:
        """Hand out one that is there, and refuse one that never will be; others have their turn."""
        if one.blocks and self._found(one) == one.blocks:
            one.is_lacking = False
            yield from self._hand_out(one)
            self._end(one)
        elif self._is_too_large(one):
            yield from self._refuse(one, no_room(one))
        else:
            self._pace.add(one)

    def _end(self, one: Adapter) -> None:
        """Nobody waits for it any more."""
        del self._busy[one.name]
        self._pace.end(one)
        self._shrink()

    def _look_for_lacking(self) -> None:
        """One at a time of those that were evicted too soon: others would be evicted for it."""
        lacking, self._held.lacking = self._held.lacking, {}
        if lacking and not any(one.is_lacking for one in self._busy.values()):
            self._wanted(*next(iter(lacking.items()))).is_lacking = True

    def _let_go(self) -> None:
        """The scheduler had its turn: whoever was to begin has begun."""
        self._turns_left -= 1
        if self._kept and self._turns_left <= 0:
            self._release(self._kept)
            self._kept = []

    def _release(self, blocks: list[int]) -> None:
        for block in blocks:
            self._tiers.loading.remove(block)
        self._pool.release(blocks)

    def _pause(self, seconds: float) -> None:
        """Let threads go on, or the service, which cannot be waited for here."""
        coming = self._pace.coming.values()
        futures: list[Future[Any]] = [one.reading for one in coming if one.reading is not None]
        futures += [one.loading.written for one in coming if one.loading is not None]
        if futures:
            wait(futures, timeout=seconds, return_when=FIRST_COMPLETED)
        else:
            time.sleep(seconds)

    def _advance(self, one: Adapter) -> Iterator[Arrival | Refusal]:
        """Go on with one adapter as far as that is possible."""
        if one.reading is not None and one.reading.done():
            reading, one.reading = one.reading, None
            try:
                image = one.image = reading.result()
            except BadAdapter as error:
                yield from self._refuse(one, str(error))
                return
            except Exception:  # noqa: BLE001 - memory may lack for it, and the others go on
                _log.exception("an adapter cannot be read")
                yield from self._refuse(one, "it cannot be read")
                return
            count = -(-image.num_pages // self._pool.kinds[0].pages)
            one.hashes = [block_hash(one.name, number) for number in range(count)]
            one.figures.fetched(image.num_pages * self._memory.page_bytes)
            if self._is_too_large(one):
                one.image = None
                yield from self._refuse(one, no_room(one))
                return
        if one.loading is not None:
            if one.loading.written.done():
                yield from self._land(one, one.loading)
        elif not (one.delivery.is_coming or one.reading or one.is_wanted):
            self._pool.release(self._take_gathered(one))
        elif one.image is not None:
            yield from self._load(one, one.image)
        elif not (one.reading or one.delivery.is_coming):
            self.wanted.append(one.name)
            one.figures.asked_at = one.delivery.ask()
        elif one.delivery.is_late:
            yield from self._refuse(one, "it does not come")

    def _found(self, one: Adapter) -> list[int | None]:
        """Its blocks, as far as they are there."""
        found = (self._pool.find([key]) for key in one.hashes)
        return [blocks[0] if blocks else None for blocks in found]

    def _load(self, one: Adapter, image: Image) -> Iterator[Refusal]:
        """Have what is missing of an adapter in the pool written into blocks, if there is room."""
        found = self._found(one)
        there = [block for block in found if block is not None]
        missing = [number for number, block in enumerate(found) if block is None]
        self._pool.acquire(there)
        if not self._gather(one, len(missing)):
            self._pool.release(there)
            others = len(self._tiers.arriving) - len(one.gathered)
            if not (self._lifecycle.running or others):
                yield from self._refuse(one, no_room(one))
            return
        gathered = self._take_gathered(one)
        new = gathered[: len(missing)]
        self._pool.release(gathered[len(missing) :])
        self._lifecycle.transfers.move_evicted(self._memory.move)
        taken = iter(new)
        blocks = [next(taken) if block is None else block for block in found]
        pages = list(map(self._pool.pages_of, new))
        landing = self._memory.landing(pages)
        fill_others = self._model.filling(image, places_of(missing, pages))
        writing = partial(write, image, missing, landing, fill_others)
        written = self._writers.submit(one.tenant, writing)
        one.loading = Loading(blocks, len(new), landing, written)
        self._tiers.loading += blocks

    def _gather(self, one: Adapter, count: int) -> bool:
        """Keep blocks for an adapter, up to so many, beside what running requests are to have: what
        becomes free would go to requests that need less at a time. For one adapter at a time, as
        two might wait for each other. Returns whether there are enough.
        """
        others = any(other.gathered for other in self._pace.coming.values() if other is not one)
        spare = self._lifecycle.headroom(self._lifecycle.running.values())
        wanted, size = count - len(one.gathered), self._pool.kinds[0].pages
        while wanted > 0 and not self._pool.can_allocate(wanted * size + spare, one.tenant):
            wanted = 0 if others else wanted - 1
        new = self._pool.allocate(max(0, wanted), one.tenant)
        one.gathered += new
        self._tiers.loading += new
        return len(one.gathered) >= count

    def _take_gathered(self, one: Adapter) -> list[int]:
        """They are kept no more."""
        gathered, one.gathered = one.gathered, []
        for block in gathered:
            self._tiers.loading.remove(block)
        return gathered

    def _land(self, one: Adapter, loading: Loading) -> Iterator[Arrival]:
        """An adapter is in its blocks: who waits for it holds them, too."""
        one.loading = None
        loading.written.result()
        loading.landing.land()
        for block, key in zip(loading.blocks, one.hashes, strict=True):
            if self._pool.hashes[block] is None:
                self._pool.register(block, key, is_tail=True)
                self._tiers.fresh.discard(block)  # it is there
        assert one.image is not None
        one.blocks = loading.blocks
        if loading.num_new:
            seconds = time.monotonic() - loading.began_at
            one.figures.load_seconds = seconds
            self._pool.join(one.blocks, self._worth(loading, seconds))
        pages = [page for block in one.blocks for page in self._pool.pages_of(block)]
        self._forget_evicted()
        self._placed[one.name] = Placed(one.hashes[-1], one.figures.seconds)
        self._model.use(one.name, one.image, pages)
        yield from self._hand_out(one)
        if one.is_lacking:
            one.is_lacking = False
            self._kept, self._turns_left = self._kept + loading.blocks, _TURNS
        else:
            self._release(loading.blocks)

    def _worth(self, loading: Loading, seconds: float) -> float:
        """Of a use, for a page: its seconds over those of computing as many tokens' keys."""
        computed = self._lifecycle.recovery.costs.token_seconds * self._lifecycle.block_size
        pages = loading.num_new * self._pool.kinds[0].pages / self._pool.block_pages
        return seconds / (pages * computed)

    def _forget_evicted(self) -> None:
        """Nobody computes with what is not to be found."""
        for name in self._placed.keys() - {one.name for one in self.loaded}:
            self._model.forget(name)
            del self._placed[name]

    def _hand_out(self, one: Adapter) -> Iterator[Arrival]:
        """It is there: who waits for it comes in, and holds it when it begins."""
        while one.waiting:
            _, (request, grammar) = one.waiting.popitem(last=False)
            self._pin(one, request)
            one.figures.use()
            yield Arrival(request, grammar, one.hashes)

    def _pin(self, one: Adapter, request: EngineRequest) -> None:
        """Pin an adapter as its request wishes, within its tenant's limit."""
        assert request.adapter is not None
        name, limit = request.adapter.pin, request.share.max_pinned_blocks
        if name is not None:
            pages = self._pins.would_hold(name, request.tenant, one.blocks)
            if limit is None or self._pool.in_blocks(pages) <= limit:
                self._pins.pin(name, request.tenant, one.blocks)

    def _refuse(self, one: Adapter, why: str) -> Iterator[Refusal]:
        self._pool.release(self._take_gathered(one))
        requests = one.give_up()
        self._end(one)
        error = f"the adapter cannot be used: {why}"
        lacking = [
            group
            for name, group in self._lifecycle.live.items()
            if group.request.adapter_name == one.name and name not in self._lifecycle.running
        ]
        ended = [seq for group in lacking for seq in self._lifecycle.end(group, "error", error)]
        yield Refusal(requests, ended, error)

    def _is_too_large(self, one: Adapter) -> bool:
        """Whether there is no room for it, whatever else goes."""
        return len(one.hashes) * self._pool.kinds[0].pages > self._pool.num_pages

    def _shrink(self) -> None:
        """Let images go that were not used for longest, as long as they have too many bytes."""
        held = [one for one in self._known.values() if one.image is not None]
        left = sum(one.image.num_bytes for one in held if one.image is not None)
        for one in held:
            if left <= self._most_bytes:
                break
            if one.name not in self._busy and one.image is not None:
                left, one.image = left - one.image.num_bytes, None
        while len(self._known) > _MOST_KNOWN and next(iter(self._known)) not in self._busy:
            self._known.popitem(last=False)
