"""The replicas as a front door knows them: what each has said, and who takes a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from msgspec import structs

from app.cluster.door.fairness import Turns
from app.cluster.door.ledger import LeaseLedger
from app.cluster.door.link import Link
from app.cluster.messages import Adapters, Blocks, Hello, State, ToDoor, Wanted
from app.cluster.rollout import mismatch, own_release
from app.cluster.routing.index import PrefixIndex
from app.cluster.routing.router import ReplicaLoad, Router, Why
from engine.api import EngineInfo, EngineRequest, EngineStats
from engine.client import ROUTED_BY, FleetFigures, ReplicaFigures, RoutedBy
from engine.questions import ServedElsewhere
from engine.serve.messages import Abort, Deltas, Down, Ready, Submit
from engine.serve.running_stream import RunningStream

ROUTED_AS: Final[Mapping[Why, RoutedBy]] = {
    "cached": "residency",
    "sticky": "residency",
    "spread": "load",
    "two_choices": "random",
}
"""What operators are shown of a choice."""
_LAG_SECONDS: Final = 15.0
"""A replica that has told of no blocks for so long has nothing to tell, and is not behind."""


@dataclass(slots=True)
class Heard:
    """What one replica has said of itself."""

    engine_restarts: int = 0
    _stats: EngineStats | None = None
    _lag_seconds: float = 0.0
    _lag_at: float = 0.0
    """When that was found, in seconds since 1970."""
    _lost: int = 0
    """Messages of blocks, since it was attended to last."""
    _lost_before: int = 0

    def state(self, stats: EngineStats) -> None:
        """How its engine is. Another one than before has taken a dead one's place."""
        if self._stats is not None and self._stats.engine != stats.engine:
            self.engine_restarts += 1
        self._stats = stats

    def blocks(self, told: Blocks) -> None:
        """What it holds, and when and how it has told so."""
        if told.at:
            self._lag_at = time.time()
            self._lag_seconds = max(0.0, self._lag_at - told.at)
        if told.lost < self._lost:  # the door attends to it anew
            self._lost_before += self._lost
        self._lost = told.lost

    def figures(self, name: str, *, is_up: bool) -> ReplicaFigures:
        """All of it; of an engine that is lost no more than that."""
        is_telling = time.time() - self._lag_at < _LAG_SECONDS
        return ReplicaFigures(
            name=name,
            stats=self._stats if is_up else None,
            is_up=is_up,
            engine_restarts=self.engine_restarts,
            index_lag_seconds=self._lag_seconds if is_telling else 0.0,
            events_lost=self._lost_before + self._lost,
        )


_log = logging.getLogger(__name__)
_FIRST_TOKENS_PER_S: Final = 1000.0
"""Of a prompt, at a replica that has not computed any yet."""
_MOST_HOMES: Final = 65_536


@dataclass(eq=False)
class Run:
    """A request under way, at one replica after the other."""

    request: EngineRequest
    stream: RunningStream
    hashes: Sequence[bytes]
    """Of the prompt's full blocks."""
    at: Replica | None = None
    name: str = ""
    """What it is called there: unlike any that a replica may not have forgotten yet."""
    num_replicas: int = 0
    """That it was sent to so far."""


@dataclass(eq=False)
class Replica:
    """What is known of a replica, and what it has of this door's."""

    link: Link
    order: int
    """That they joined in; this door's own."""
    info: EngineInfo | None = None
    """`None`: it is not ready."""
    takes_requests: bool = False
    """Others are spared it until it has been admitted."""
    runs: dict[str, Run] = field(default_factory=dict)
    heard: Heard = field(default_factory=Heard)


class Fleet:
    """Keeps a link with each replica that takes calls, and sends requests where they cost least."""

    def __init__(
        self,
        on_ready: Callable[[Replica], None],
        on_lost: Callable[[list[Run]], None],
        on_wanted: Callable[[Link, Wanted], None],
    ) -> None:
        """`on_ready` is told whenever a replica has a new engine; `on_lost` what one was computing
        for this door that is to go on elsewhere; `on_wanted` of an adapter that one is to have.
        """
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._on_wanted = on_wanted
        self._loop = asyncio.get_running_loop()
        self._handle: Any = None
        self._names: frozenset[str] = frozenset()
        self._replicas: dict[str, Replica] = {}
        self._by_number: dict[int, Replica] = {}
        self._loads: dict[int, ReplicaLoad] = {}
        """Of those that take requests."""
        self._num_joined = 0
        self.ledger = LeaseLedger()
        self._routed = Counter[RoutedBy](dict.fromkeys(ROUTED_BY, 0))
        self._streams_moved = 0
        self._turns = Turns()
        self._index = PrefixIndex()
        self._router: Router | None = None
        self._computes: tuple[object, ...] = ()
        """What the first replica did; nothing else can go on with its streams, nor with what this
        door makes of texts."""
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> list[Replica]:
        """Those that compute, though some may not take requests yet."""
        return [replica for replica in self._replicas.values() if replica.info is not None]

    def figures(self, num_wanted: int) -> FleetFigures:
        """What operators are shown; so many replicas there are to be."""
        return FleetFigures(
            replicas=[
                one.heard.figures(name, is_up=one.info is not None)
                for name, one in sorted(self._replicas.items())
            ],
            num_wanted=num_wanted,
            routed=self._routed,
            index_blocks=len(self._index),
            streams_moved=self._streams_moved,
        )

    def attend(self, handle: Any) -> None:
        """From now on there is a deployment to speak to."""
        self._handle = handle
        self.become(self._names)

    def become(self, names: frozenset[str]) -> None:
        """These replicas take calls."""
        self._names = names
        if self._handle is None:
            return
        for name in self._replicas.keys() - names:
            replica = self._replicas.pop(name)
            self._by_number.pop(replica.link.number, None)
            self._lose(replica, has_died=False)
            self._close(replica.link)
        for name in names - self._replicas.keys():
            link = Link(self._handle, name, _number(name), self._hear, self._lost)
            self._num_joined += 1
            self._replicas[name] = self._by_number[link.number] = Replica(link, self._num_joined)

    def send(self, run: Run, to: Replica | None = None) -> bool:
        """Have it computed where that costs least, or by that one; `False`: there is none."""
        if self._router is None or not self.ready:
            return False
        if not self._loads:
            for replica in self.ready:
                self.admit(replica)
        run.num_replicas += 1
        run.name = f"{run.request.request_id}.{run.num_replicas}"
        run.at = to if to is not None and to.info is not None else self._choose(run, self._router)
        run.at.runs[run.name] = run
        resumption = structs.replace(run.stream.resumption(), request_id=run.name)
        run.at.link.send(Submit(resumption))
        return True

    def admit(self, replica: Replica) -> None:
        """It may take requests, if it is ready."""
        if replica.info is not None and not replica.takes_requests:
            replica.takes_requests = True
            first = ReplicaLoad(0.0, 1.0, _FIRST_TOKENS_PER_S, self._loop.time())
            self._loads[replica.link.number] = first

    def is_held(self, hashes: Sequence[bytes]) -> bool:
        """Whether a replica has all of these blocks."""
        return len(hashes) in self._index.depths(hashes).values()

    def leave(self, run: Run) -> bool:
        """It is nobody's any more; returns whether somebody may still be at it."""
        replica, run.at = run.at, None
        if replica is None:
            return False
        replica.runs.pop(run.name, None)
        if self._router is not None:
            self._router.finished(run.name)
        return True

    async def close(self) -> None:
        """Leave all replicas."""
        self._names = frozenset()
        links = [replica.link for replica in self._replicas.values()]
        self._replicas.clear()
        self._by_number.clear()
        self._loads.clear()
        await asyncio.gather(*(link.close() for link in links), *self._closing)

    def _choose(self, run: Run, router: Router) -> Replica:
        """Where a request costs least, of those that are ready."""
        now, conversation = self._loop.time(), run.request.conversation
        home = None if conversation is None else self._homes.get(conversation)
        adapter, size = run.request.adapter_name, len(run.request.prompt)
        choice = router.choose(run.hashes, size, self._loads, now, home, adapter)
        router.routed(run.name, choice, run.hashes, now, adapter)
        self._routed[ROUTED_AS[choice.why]] += 1
        if conversation is not None:
            self._homes[conversation] = choice.replica
            self._homes.move_to_end(conversation)
            if len(self._homes) > _MOST_HOMES:
                self._homes.popitem(last=False)
        return self._by_number[choice.replica]

    def _hear(self, link: Link, message: ToDoor) -> None:
        replica = self._by_number.get(link.number)
        if replica is None:
            return
        match message:
            case Hello(release):
                if release != own_release():
                    _log.error("replica %x gets no requests: %s", link.number, mismatch(release))
                    del self._by_number[link.number]  # nor is it heard any more
                    self._close(link)
            case Ready(info):
                if self._router is None:
                    self._router, self._computes = Router(self._index, info.block_size), _what(info)
                if _what(info) != self._computes:
                    _log.error(
                        "replica %x computes %s: it gets no requests", link.number, info.model
                    )
                    return
                replica.info = info
                self._dismiss(replica)  # a new engine has nothing cached
                if not self._loads:
                    self.admit(replica)
                self._on_ready(replica)
            case Down(requests, alone):
                self._take_away(replica, set(requests), alone=alone)
            case Deltas(deltas):
                for delta in deltas:
                    run = replica.runs.get(delta.request_id)
                    if run is not None:
                        run.stream.push(delta)
                        if run.stream.has_ended:
                            self.leave(run)
            case State(stats, books, gone):
                replica.heard.state(stats)
                if replica.takes_requests:
                    self._loads[link.number] = _load(stats, self._loop.time())
                self.ledger.observe(link.number, stats.tenants, gone, books=books)
                elsewhere = self._turns.observe(link.number, stats.tenants, gone)
                if books and elsewhere:
                    link.send(ServedElsewhere(elsewhere))
            case Adapters(loaded, gone_names):
                seconds = {one.name: one.seconds for one in loaded}
                if self._router is not None:
                    self._router.adapters.loaded(link.number, seconds, gone_names)
            case Wanted():
                self._on_wanted(link, message)
            case Blocks(stored, removed, cleared):
                replica.heard.blocks(message)
                if cleared:
                    self._index.cleared(link.number)
                self._index.stored(link.number, stored)
                self._index.removed(link.number, removed)

    def _lost(self, link: Link) -> None:
        replica = self._by_number.get(link.number)
        if replica is not None:
            self._lose(replica, has_died=link.has_died)

    def _lose(self, replica: Replica, *, has_died: bool) -> None:
        """What it was computing is to go on elsewhere."""
        self.ledger.forget(replica.link.number)
        self._turns.forget(replica.link.number)
        if self._router is not None:
            self._router.adapters.forget(replica.link.number)
        self._take_away(replica, replica.runs.keys() if has_died else set(), alone=False)

    def _take_away(self, replica: Replica, dead: Set[str], *, alone: bool) -> None:
        """Its requests go on elsewhere, and nothing is known to be there.

        Of those that are `dead` each may be to blame, the more so if it was `alone`.
        """
        replica.info = None
        self._dismiss(replica)
        self._index.cleared(replica.link.number)
        if self._router is not None:
            self._router.gone(replica.link.number)
        runs, replica.runs = replica.runs, {}
        self._streams_moved += len(runs)
        for name, run in runs.items():
            run.at = None
            replica.link.send(Abort(name))  # it may come to it only now
            if name in dead:
                run.stream.survive_death(alone=alone)
            else:
                run.stream.hand_over()
        self._on_lost(sorted(runs.values(), key=lambda run: run.stream.deaths, reverse=True))

    def _dismiss(self, replica: Replica) -> None:
        """It is to take no requests until it is admitted."""
        replica.takes_requests = False
        self._loads.pop(replica.link.number, None)

    def _close(self, link: Link) -> None:
        closing = asyncio.create_task(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _number(name: str) -> int:
    """What routing calls a replica, alike at all doors, so that they prefer the same one."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def _load(stats: EngineStats, now: float) -> ReplicaLoad:
    """What the router is to know of a replica that says this."""
    return ReplicaLoad(
        queue_seconds=stats.queue_seconds,
        kv_free_share=1 - stats.blocks_in_use / stats.blocks_total,
        prefill_tokens_per_s=stats.prefill_tokens_per_s or _FIRST_TOKENS_PER_S,
        said_at=now,
    )


def _what(info: EngineInfo) -> tuple[object, ...]:
    """What a replica computes, and so what its blocks hold."""
    return info.hash_extras, info.dtype, info.block_size, info.vocab_size
