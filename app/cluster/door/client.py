"""Engines on Ray Serve as the service sees them: one, whose streams outlive its replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from app.cluster.door.courier import Courier
from app.cluster.door.fleet import Fleet, Replica, Run
from app.cluster.door.hot_prompts import Heads
from app.cluster.door.membership import watch_replicas
from app.cluster.door.ray_head import HeadWatch
from app.cluster.door.sums import Counts, adapters_of_all, best_fates, sum_of
from app.cluster.rollout import join
from engine.api import (
    ChainPage,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineUnavailable,
    TokenDelta,
)
from engine.blocks.hashing import block_hashes, extras_for
from engine.client import EngineClient, FleetFigures
from engine.questions import (
    AnswerT,
    AskAdapters,
    AskChains,
    AskFates,
    AskRoll,
    AskStats,
    ForgetOthers,
    ForgetTenant,
    KeepUnder,
    Question,
    Said,
    SaidT,
    Unpin,
    for_one_of,
)
from engine.serve.messages import Abort
from engine.serve.running_stream import RunningStream
from engine.validation import check_request

if TYPE_CHECKING:
    from app.cluster.node.deployment import Cluster

_THREADED_TOKENS: Final = 16_384
"""Longer prompts are hashed beside the loop."""
_WARMING_SECONDS: Final = 60.0
"""After which a new replica takes requests, however many prompts it has not computed yet."""
_SUSPECT_DEATHS: Final = 2
"""Of engines in a row, after which a request waits for one that is new: it is not to end a third
one that is well."""
_PAGE_BITS: Final = 48
"""Of a page's number, below its replica's."""


class ClusterEngine(EngineClient):
    """Replicas behind a deployment handle.

    A replica that dies, or is to take no more, leaves its streams to the others: they go on behind
    what has been passed on. They end with `finish_reason="error"` if no other one is there for
    `rebuild_seconds`.
    """

    def __init__(
        self,
        cluster: Cluster,
        ready_seconds: float,
        rebuild_seconds: float = 60.0,
        cadence_seconds: float = 0.0,
        num_replicas: int = 1,
    ) -> None:
        """`ready_seconds` is how long the first replica may take; of them there are to be at least
        `num_replicas`.
        """
        self._cluster = cluster
        self._ready_seconds = ready_seconds
        self._rebuild_seconds = rebuild_seconds
        self._cadence_seconds = cadence_seconds
        self._num_replicas = num_replicas
        self._loop = asyncio.get_running_loop()
        self._courier = Courier(lambda: self.source)
        self._fleet = Fleet(self._ready, self._lost, self._courier.send)
        self._runs: dict[str, Run] = {}
        self._homeless: dict[Run, asyncio.TimerHandle] = {}
        self._starts = 0
        self._started = asyncio.Condition()
        self._unwatch: Callable[[], None] = lambda: None
        self._head = HeadWatch()
        self._heads = Heads()
        self._counts = Counts()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`; all replicas have the same."""
        for replica in self._fleet.ready:
            if replica.info is not None:
                return replica.info
        raise EngineUnavailable("no replica is ready")

    @property
    def num_ready(self) -> int:
        """How many replicas compute."""
        return len(self._fleet.ready)

    @property
    def trouble(self) -> str | None:
        """See `EngineClient.trouble`."""
        return "Ray's head does not answer" if self._head.is_lost else None

    @property
    def fleet(self) -> FleetFigures:
        """See `EngineClient.fleet`."""
        return self._fleet.figures(self._num_replicas)

    async def start(self) -> None:
        """See `EngineClient.start`."""

        def become(names: frozenset[str]) -> None:
            self._loop.call_soon_threadsafe(self._fleet.become, names)

        self._unwatch = watch_replicas(become)
        try:
            async with asyncio.timeout(self._ready_seconds):
                self._fleet.attend(await join(self._cluster))
                if self._cluster.head is not None:
                    self._keep(self._head.run(self._cluster.head))
                await self.wait_started(0)
        except TimeoutError:
            seconds = f"{self._ready_seconds:g} seconds"
            raise EngineError(f"no replica was ready in {seconds}") from None

    async def close(self) -> None:
        """See `EngineClient.close`."""
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()
        for run in self._runs.values():
            run.stream.end("aborted")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._courier.close()
        await self._fleet.close()
        await asyncio.to_thread(self._cluster.close)

    async def wait_started(self, starts: int) -> int:
        """See `EngineClient.wait_started`; the engines of all replicas are counted."""
        async with self._started:
            await self._started.wait_for(lambda: self._starts > starts)
            return self._starts

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """See `EngineClient.generate`. What is pinned is computed by every replica."""
        check_request(request, self.info)
        hashes = await self._hashes(request)
        self._heads.note(request, hashes, self.info.block_size, self._loop.time())
        if request.pin is not None:
            yield await self._compute_everywhere(request, hashes)
            return
        async with aclosing(self._generate(request, hashes)) as deltas:
            async for delta in deltas:
                yield delta

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """See `EngineClient.abort`."""
        run = self._runs.get(request_id)
        if run is not None and run.at is None:
            run.stream.end("aborted", index=index)
        elif run is not None and run.at is not None:
            run.stream.abort(index)
            run.at.link.send(Abort(run.name, index))

    async def ask(self, question: Question[..., SaidT, AnswerT], argument: SaidT) -> AnswerT:
        """See `EngineClient.ask`: of one replica, but for what is told of all together."""
        argument.check(self.info)
        said: Any
        match argument:
            case AskStats():
                said = self._sum(await self._ask_all(question, argument))
            case AskFates():
                answers: Any = await self._ask_all(question, argument)
                said = best_fates(list(answers.values()))
            case AskAdapters():
                states: Any = await self._ask_all(question, argument)
                said = adapters_of_all(list(states.values()))
            case AskChains():
                said = await self._chains(question, argument)
            case _:
                replica, own = for_one_of(self._in_order(), argument)
                said = await replica.link.ask(question, own)
                if isinstance(argument, AskRoll):
                    said = structs.replace(said, replicas=self.num_ready)
        answer: AnswerT = said
        return answer

    async def tell(self, order: Said) -> None:
        """See `EngineClient.tell`: all replicas, which keep nothing on disk."""
        match order:
            case ForgetOthers() | KeepUnder():
                return
            case Unpin(pin):
                self._heads.unpin(pin)
            case ForgetTenant(tenant):
                self._heads.forget_tenant(tenant)
        for replica in self._fleet.ready:
            replica.link.send(order)

    def _sum(self, stats: dict[int, Any]) -> EngineStats:
        """Of what all replicas have counted, and of what leases have cost what this door is to
        book.
        """
        self._counts.observe(stats, [replica.link.number for replica in self._fleet.ready])
        total = self._counts.put_into(sum_of(list(stats.values())))
        return structs.replace(total, tenants=self._fleet.ledger.booked(total.tenants))

    async def _chains(self, question: Question[..., Any, Any], asked: AskChains) -> ChainPage:
        """Those of one replica behind those of the other."""
        before = asked.before
        number, within = (None, None) if before is None else divmod(before, 1 << _PAGE_BITS)
        left = [one for one in self._in_order() if number is None or one.order >= number]
        if not left:
            return ChainPage(chains=[])
        first = left[0]
        own = structs.replace(asked, before=within or None if first.order == number else None)
        page: ChainPage = await first.link.ask(question, own)
        following = None
        if page.next is not None:
            following = (first.order << _PAGE_BITS) + page.next
        elif len(left) > 1:
            following = left[1].order << _PAGE_BITS
        return structs.replace(page, next=following)

    async def _generate(
        self, request: EngineRequest, hashes: Sequence[bytes], to: Replica | None = None
    ) -> AsyncGenerator[TokenDelta]:
        """Serve one request, by that replica if it is there."""
        if request.request_id in self._runs:
            raise EngineError(f"request id {request.request_id!r} is in use")
        run = Run(request, RunningStream(request, self._cadence_seconds), hashes)
        self._runs[request.request_id] = run
        try:
            self._place(run, to)
            while not run.stream.is_read:
                yield await run.stream.next()
        finally:
            del self._runs[request.request_id]
            self._forget_home(run)
            replica, name = run.at, run.name
            if self._fleet.leave(run) and replica is not None:
                replica.link.send(Abort(name))

    async def _compute_everywhere(
        self, request: EngineRequest, hashes: Sequence[bytes]
    ) -> TokenDelta:
        """Have each replica compute a prompt; returns the end of one that fails, or of any."""

        async def compute(replica: Replica) -> TokenDelta:
            own = f"{request.request_id}@{replica.order}"
            part = structs.replace(request, request_id=own)
            return [delta async for delta in self._generate(part, hashes, replica)][-1]

        ends = await asyncio.gather(*map(compute, self._fleet.ready))
        end = next((one for one in ends if one.finish_reason in ("error", "aborted")), ends[0])
        return structs.replace(end, request_id=request.request_id)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done beside, until this is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hashes(self, request: EngineRequest) -> Sequence[bytes]:
        if len(request.prompt) > _THREADED_TOKENS:
            return await asyncio.to_thread(_hashes_of, request, self.info)
        return _hashes_of(request, self.info)

    def _in_order(self) -> list[Replica]:
        """Those that are ready, as they have joined in."""
        return sorted(self._fleet.ready, key=lambda one: one.order)

    def _place(self, run: Run, to: Replica | None = None) -> None:
        """Send it to a replica, or let it wait for one; not for ever."""
        is_spared = to is None and run.stream.deaths >= _SUSPECT_DEATHS
        if run.stream.has_ended or (not is_spared and self._fleet.send(run, to)):
            return
        error = "no replica is there to compute it"
        self._homeless[run] = self._loop.call_later(
            self._rebuild_seconds, run.stream.end, "error", error
        )

    def _forget_home(self, run: Run) -> None:
        """It waits for no replica any more."""
        deadline = self._homeless.pop(run, None)
        if deadline is not None:
            deadline.cancel()

    def _ready(self, replica: Replica) -> None:
        """There is a new engine: who waits for one may have it, and others once it is warm."""
        for run in sorted(self._homeless, key=lambda run: run.stream.deaths, reverse=True):
            self._forget_home(run)
            self._place(run, replica)
        self._starts += 1
        self._keep(self._tell_start())
        self._keep(self._warm(replica))

    async def _tell_start(self) -> None:
        async with self._started:
            self._started.notify_all()

    async def _warm(self, replica: Replica) -> None:
        """Have a new replica compute its share of prompts, then take requests."""
        numbers = [one.link.number for one in self._fleet.ready]
        own, now = replica.link.number, self._loop.time()
        with contextlib.suppress(TimeoutError, EngineError):
            async with asyncio.timeout(_WARMING_SECONDS):
                for head in self._heads.share_of(own, numbers, now, self._fleet.is_held):
                    async for _ in self._generate(head.request, head.hashes, replica):
                        pass
        self._fleet.admit(replica)

    def _lost(self, runs: list[Run]) -> None:
        """A replica computes these no more."""
        for run in runs:
            self._place(run)

    async def _ask_all(
        self, question: Question[..., SaidT, AnswerT], argument: SaidT
    ) -> dict[int, AnswerT]:
        """What all replicas answer that do. Raises `EngineUnavailable` if none does."""
        links = [replica.link for replica in self._fleet.ready]
        asked = (link.ask(question, argument) for link in links)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineUnavailable):
                raise answer
        found = {
            link.number: answer
            for link, answer in zip(links, answers, strict=True)
            if not isinstance(answer, BaseException)
        }
        if not found:
            raise EngineUnavailable("no replica answers")
        return found


def _hashes_of(request: EngineRequest, info: EngineInfo) -> list[bytes]:
    beside = request.adapter, request.pictures
    extras = extras_for(info.hash_extras, info.rotary_switch, len(request.prompt), *beside)
    return block_hashes(request.prompt, info.block_size, request.namespaces, extras)
