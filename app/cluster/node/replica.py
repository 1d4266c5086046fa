"""One engine as a replica of Ray Serve: it serves front doors, each over one stream of messages.

Ray carries a message in the time of many tokens, so all that a step has produced for a door's
requests goes as one. A door that leaves, or is not heard of any more, takes its requests with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from ray.serve import get_replica_context

from app.cluster.messages import (
    Adapters,
    Beat,
    Hello,
    ToDoor,
    adapters_since,
    decode_brought,
    state_since,
)
from app.cluster.node.errands import Errands
from app.cluster.node.events import Follower
from app.cluster.node.scaling import KV_SHARE, QUEUE_SECONDS
from app.cluster.rollout import Deployed, Greeting, own_release
from app.observe.log_setup import log_replica
from engine.api import EngineError, EngineRequest, EngineStats, EngineUnavailable, TokenDelta
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from engine.questions import QUESTIONS, Said
from engine.serve.deltas import ends_of
from engine.serve.messages import (
    Abort,
    Deltas,
    Down,
    Ready,
    Submit,
    ToEngine,
    decode_question,
    decode_to_engine,
    encode,
)

BEAT_SECONDS: Final = 0.5
"""Between two messages that say how busy the replica is."""


class Pulse:
    """Asks an engine how it is, and tells when it is lost and when there is one again.

    It is lost when it dies, is halted by a signal, or does not answer for as long as a step may
    take; the first two show at once. One that was halted or slow may come back.
    """

    def __init__(self, engine: ProcessEngine, tell: Callable[[Down | Ready], None]) -> None:
        self.stats: EngineStats | None = None
        """What it has last said; `None`: it is lost, or has not said anything yet."""
        self.is_up = True
        self._engine = engine
        self._tell = tell
        engine.on_down = self._lose

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                stats = await self._said()
            except EngineUnavailable:
                self._lose(self._engine.requests_inside())
            else:
                self._find(stats)
            await asyncio.sleep(BEAT_SECONDS)

    async def _said(self) -> EngineStats:
        """What the engine says. Raises `EngineUnavailable` where it does not, or cannot."""
        asked = asyncio.ensure_future(self._engine.stats())
        try:
            while not (await asyncio.wait({asked}, timeout=BEAT_SECONDS))[0]:
                if self._engine.is_halted:  # which no request has done
                    self._lose(Down([], alone=False))
                    raise EngineUnavailable("the engine is halted")
            return asked.result()
        finally:
            asked.cancel()

    def _lose(self, down: Down) -> None:
        self.stats = None
        if self.is_up:
            self.is_up = False
            self._tell(down)

    def _find(self, stats: EngineStats) -> None:
        self.stats = stats
        if not self.is_up:
            self.is_up = True
            self._tell(Ready(self._engine.info))


SILENCE_SECONDS: Final = 10.0
"""Without a word from it, a door is gone."""


class WrongReplica(Exception):
    """A call for a replica that takes none any more has come to another one."""


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica is started with."""

    engine: EngineConfig
    rebuild_seconds: float
    silence_seconds: float
    loading_seconds: float


class EngineReplica:
    """Owns one engine process, which is started again if it dies alone."""

    async def __init__(self, options: bytes, deployed: bytes) -> None:  # type: ignore[misc]  # Serve's
        """These are `ReplicaOptions` and `Deployed` in JSON. Raises `EngineError`."""
        self._deployed = msgspec.json.decode(deployed, type=Deployed)
        given = msgspec.json.decode(options, type=ReplicaOptions)
        log_replica(given.engine)
        self._folder = tempfile.TemporaryDirectory(prefix="partywall-replica-")
        events, replay = (f"ipc://{Path(self._folder.name, name)}" for name in ("events", "replay"))
        self._events = events, replay
        config = msgspec.structs.replace(given.engine, kv_events=events, kv_events_replay=replay)
        self._engine = ProcessEngine(
            config, given.rebuild_seconds, given.silence_seconds, given.loading_seconds
        )
        self._doors: dict[str, _Door] = {}
        self._errands = Errands(self._doors)
        self._engine.source = self._errands.fetch
        self._name = get_replica_context().replica_id.unique_id
        await self._engine.start()
        self._pulse = Pulse(self._engine, self._tell_all)
        self._watch = asyncio.create_task(self._pulse.run())

    async def greet(self) -> bytes:
        """A `Greeting`. Who calls is told by Ray which replicas there are."""
        return msgspec.msgpack.encode(Greeting(release=own_release(), deployed=self._deployed))

    async def check_health(self) -> None:
        """Serve asks now and then, and starts another replica in place of one that raises."""
        if self._watch.done():
            self._watch.result()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve's controller is told now and then (`app.cluster.node.scaling`)."""
        stats = self._pulse.stats
        if stats is None:
            return {}
        share = stats.blocks_in_use / stats.blocks_total
        return {QUEUE_SECONDS: stats.queue_seconds, KV_SHARE: share}

    async def attend(self, door: str, replica: str) -> AsyncIterator[bytes]:
        """What a door is told, from now until it leaves: `ToDoor`.

        Raises `WrongReplica` if it is not `replica` that is called; and so does what follows.
        """
        self._expect(replica)
        own = self._doors[door] = _Door(
            self._engine, self._pulse, self._events, lambda: self._books(door)
        )
        own.put(Hello(own_release()))
        try:
            if self._pulse.is_up:
                own.put(Ready(self._engine.info))
            while own.is_heard_of:
                for message in await own.take():
                    yield encode(message)
        finally:
            del self._doors[door]
            self._errands.lose(own)
            await own.close()

    async def tell(self, door: str, messages: Sequence[bytes], replica: str) -> None:
        """Do what an attended door wants (`ToEngine`), in order. Raises `KeyError` for others."""
        self._expect(replica)
        own = self._doors[door]
        for message in messages:
            await own.hear(decode_to_engine(message))
        own.is_heard()

    async def bring(self, piece: bytes, replica: str) -> bool:
        """Take a piece of an adapter (`Brought`) from a door that was asked for it; returns when it
        may bring the next one. `False`: no more of it is wanted.
        """
        self._expect(replica)
        return await self._errands.bring(decode_brought(piece))

    async def ask(self, question: bytes, replica: str) -> bytes:
        """The answer to a question of `engine.questions`. Raises `EngineUnavailable`."""
        self._expect(replica)
        said = decode_question(question)
        return encode(await self._engine.ask(QUESTIONS[type(said)], said))

    def _books(self, door: str) -> bool:
        """Whether it is the one that has been here longest: only one is to book leases."""
        return next(iter(self._doors)) == door

    def _expect(self, replica: str) -> None:
        if replica != self._name:
            raise WrongReplica(replica)

    def _tell_all(self, message: Down | Ready) -> None:
        """The engine is lost, and what it was computing; or there is one again."""
        for door in self._doors.values():
            if isinstance(message, Down):
                door.drop_requests()
            door.put(message)


class _Door:
    """A front door's requests, and what there is to tell it."""

    def __init__(
        self,
        engine: ProcessEngine,
        pulse: Pulse,
        events: tuple[str, str],
        books: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._pulse = pulse
        self._told: EngineStats | None = None
        """What it has last heard of the engine."""
        self._books = books
        self._loop = asyncio.get_running_loop()
        self._deltas: list[TokenDelta] = []
        self._others: list[ToDoor] = []
        self._news = asyncio.Event()
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._brought: Counter[bytes] = Counter()
        """How many of its requests have each."""
        self._heard_at = self._loop.time()
        self._beat_at = self._loop.time()
        self._following = asyncio.create_task(Follower(self.put, *events).run())

    @property
    def is_heard_of(self) -> bool:
        """Whether it still says something now and then."""
        return self._loop.time() - self._heard_at < SILENCE_SECONDS

    def needs(self, name: bytes) -> bool:
        """See `app.cluster.node.errands.Door`."""
        return self._brought[name] > 0

    def is_heard(self) -> None:
        """It has said something, if only that it is there."""
        self._heard_at = self._loop.time()

    def put(self, message: ToDoor) -> None:
        """Have it told, behind the deltas so far."""
        self._flush()
        self._others.append(message)
        self._news.set()

    async def take(self) -> list[ToDoor]:
        """What there is to tell, as soon as there is anything, or it is time to say how it goes."""
        left = self._beat_at - self._loop.time()
        if left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()
                    await asyncio.sleep(0)  # the other requests of the step have theirs by then
        if self._loop.time() >= self._beat_at:
            self._beat_at = self._loop.time() + BEAT_SECONDS
            self._others += self._state()
        self._flush()
        self._news.clear()
        told, self._others = self._others, []
        return told

    async def hear(self, message: ToEngine) -> None:
        """Do what the door wants."""
        match message:
            case Submit(request):
                task = asyncio.create_task(self._serve(request))
                self._requests[request.request_id] = task
                for name in request.brought:
                    self._brought[name] += 1
                    task.add_done_callback(partial(self._done_with, name))
            case Abort(request_id, None):
                task_or_none = self._requests.pop(request_id, None)
                if task_or_none is not None:
                    task_or_none.cancel()
            case Abort(request_id, index):
                await self._engine.abort(request_id, index)
            case Said():
                await self._engine.tell(message)

    def drop_requests(self) -> None:
        """They go on elsewhere."""
        for task in self._requests.values():
            task.cancel()
        self._requests.clear()

    async def close(self) -> None:
        """Abort its requests."""
        tasks = [self._following, *self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, request: EngineRequest) -> None:
        try:
            async with aclosing(self._engine.generate(request)) as deltas:
                async for delta in deltas:
                    self._deltas.append(delta)
                    self._news.set()
        except EngineError as error:
            self._deltas += ends_of(request, "error", str(error))
            self._news.set()
        finally:
            if self._requests.get(request.request_id) is asyncio.current_task():
                del self._requests[request.request_id]

    def _done_with(self, name: bytes, _: asyncio.Task[None]) -> None:
        self._brought[name] -= 1
        if not self._brought[name]:
            del self._brought[name]

    def _state(self) -> list[ToDoor]:
        """How the engine is, if it has said so: what takes it long is no silence of the replica."""
        stats = self._pulse.stats
        if stats is None or stats is self._told:
            return [Beat()]
        before, self._told = self._told, stats
        if before is None:
            return [state_since(None, stats, self._books()), Adapters(stats.adapters)]
        state = state_since(before.tenants, stats, self._books())
        adapters = adapters_since(before.adapters, stats.adapters)
        return [state] if adapters is None else [state, adapters]

    def _flush(self) -> None:
        if self._deltas:
            self._others.append(Deltas(self._deltas))
            self._deltas = []
