"""The responses of the Responses API: started, found again, resumed, retrieved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from app.generation.begin import Generations
from app.generation.generation import Generation
from app.observe.metrics import Metrics
from app.prompt.history import SocketHistory
from app.prompt.sealing import encrypt_thought
from app.responses.items import is_short, listed_items, with_named
from app.responses.parse import generation_request, new_response
from app.responses.render import ResponseRenderer
from app.responses.run import ResponseRun, ResumableStreams
from app.responses.sequence_numbers import check_position
from app.responses.store import INTERRUPTED, ResponseStore
from app.responses.suspension import SuspendedRun
from app.wire.common import EffortWish
from app.wire.errors import ApiError, response_not_found, response_runs_elsewhere
from app.wire.responses import SEALED_REASONING, CreateBody
from app.workers import Workers
from engine.api import EngineError
from engine.client import EngineClient
from tenants.at_rest.records import decoded
from tenants.errors import StoreUnavailable
from tenants.records import Change, Principal, Tenant

_CANCEL_SECONDS = 1.0
"""How long a client waits for the end of what it cancels."""
_BACKGROUND = b'"background":true'


class Responses:
    """Starts responses, and knows those of every tenant whose streams can still be read.

    Of a wish for more or less reasoning, `unheeded` names the field of one that nothing comes of.
    """

    def __init__(
        self,
        generations: Generations,
        store: ResponseStore,
        engine: EngineClient,
        workers: Workers,
        metrics: Metrics,
        unheeded: Callable[[EffortWish], list[str]],
        *,
        resume_grace_seconds: float,
        max_kept_event_bytes: int,
    ) -> None:
        self.metrics = metrics
        self._generations = generations
        self._store = store
        self._engine = engine
        self._workers = workers
        self._unheeded = unheeded
        self._grace_seconds = resume_grace_seconds
        self._kept = ResumableStreams(max_kept_event_bytes)
        self._runs: dict[tuple[str, str], ResponseRun] = {}
        self._resuming: dict[tuple[str, str], asyncio.Task[ResponseRun]] = {}

    async def start(
        self, principal: Principal, body: CreateBody, on_socket: SocketHistory | None = None
    ) -> ResponseRun:
        """Begin a response. Raises what `Generations.begin` raises."""
        request, tenant = generation_request(body), principal.tenant
        resource = new_response(request.id, self._generations.names.shown(body.model), body, tenant)
        listed = b""
        if resource.store or on_socket is not None or resource.conversation is not None:
            work = partial(listed_items, request.id.removeprefix("resp_"), body.items)
            listed = work() if is_short(body) else await self._workers.run(tenant.id, work)
        options = body.stream_options
        pads = options is not None and bool(options.include_obfuscation)
        renderer = ResponseRenderer(
            resource,
            pads=pads,
            ignored=[*body.ignored_fields, *self._unheeded(body.effort_wish)],
            input=listed,
            seal=partial(encrypt_thought, tenant) if body.includes(SEALED_REASONING) else None,
        )
        async with self._store.claiming(tenant.id, resource):
            generation = await self._generations.begin(principal, request, on_socket)
            if resource.conversation is not None and generation.named:
                renderer.input = with_named(listed, generation.named)  # names are not kept there
            return await self._run(tenant, renderer, generation, on_socket=on_socket)

    async def resume(self, principal: Principal, response_id: str, after: int) -> ResponseRun:
        """A response whose stream can still be read, or go on: `follow` it from `after`.

        Raises `ApiError` 409 for a response that another process is writing, 410 for one whose
        process is gone, 404 for any other, and 400 for an `after` that no event has had; also
        whatever `start` raises, where another process has begun it.
        """
        key = principal.tenant.id, response_id
        if key not in self._runs:
            if key not in self._resuming:
                task = asyncio.create_task(self._go_on(principal, response_id, after))
                self._resuming[key] = task
                task.add_done_callback(lambda _: self._resuming.pop(key))
            # Another reader may wait for the same task.
            return await asyncio.shield(self._resuming[key])
        return self._runs[key]

    def running(self, tenant: Tenant, response_id: str) -> ResponseRun | None:
        """A tenant's running response."""
        run = self._runs.get((tenant.id, response_id))
        return None if run is None or run.ended else run

    async def retrieve(self, principal: Principal, response_id: str) -> bytes:
        """A tenant's response as JSON, running in any process or stored. Raises `ApiError` 404.

        One for the background that a restart has interrupted goes on.
        """
        tenant = principal.tenant
        run = self.running(tenant, response_id)
        if run is not None:
            return run.snapshot()
        response = await self._store.load(tenant, response_id)
        if _BACKGROUND in response and INTERRUPTED in response:
            # It has been gone on with already, or cannot be, or not now.
            with contextlib.suppress(ApiError, EngineError, StoreUnavailable):
                return (await self.resume(principal, response_id, -1)).snapshot()
        return response

    async def input_items(self, tenant: Tenant, response_id: str) -> bytes:
        """The items that a response was created with, as JSON.

        Raises `ApiError` 404, also for one that nobody keeps, and 409 while another process writes
        it.
        """
        run = self._runs.get((tenant.id, response_id))
        if run is not None:
            if not run.renderer.input:
                raise response_not_found(response_id)
            return run.renderer.input
        if await self._store.runs_elsewhere(tenant, response_id):
            raise response_runs_elsewhere(response_id)
        return await self._store.input_of(tenant.id, response_id)

    async def delete(self, tenant: Tenant, response_id: str) -> None:
        """Forget a response, which is ended if it still runs. Raises `ApiError` 404."""
        await self._resumed(tenant, response_id)
        run = self._runs.get((tenant.id, response_id))
        if run is not None:
            run.cancel()
            await run.settled()
            run.drop()
        elif await self._store.runs_elsewhere(tenant, response_id):
            with contextlib.suppress(ApiError):  # it has come to an end by itself
                await self._store.cancel_elsewhere(tenant, response_id, _CANCEL_SECONDS)
        if not await self._store.delete(tenant.id, response_id) and run is None:
            raise response_not_found(response_id)

    async def cancel(self, tenant: Tenant, response_id: str) -> bytes:
        """End a running response, here or in another process; the response as it is then, as JSON.

        One that was cancelled already is returned unchanged; one that a restart has interrupted
        does not go on. Raises `ApiError` 404, and 400 for one that has ended otherwise.
        """
        await self._resumed(tenant, response_id)
        run = self.running(tenant, response_id)
        if run is None:
            await self._store.cancel_suspended(tenant, response_id)
            return await self._store.cancel_elsewhere(tenant, response_id, _CANCEL_SECONDS)
        run.cancel()
        return await run.settled(_CANCEL_SECONDS)

    def notice(self, change: Change) -> None:
        """Another process was asked to cancel or to delete a response that may be here."""
        run = self._runs.get((change.tenant_id, change.name))
        if change.kind == "cancel" and run is not None:
            run.cancel()
        if change.kind == "forget" and run is not None and run.ended:
            run.drop()

    async def suspend(self) -> None:
        """End every running response, so that it can go on after a restart."""
        running = [run for run in self._runs.values() if not run.ended]
        for run in running:
            run.suspend()
        await asyncio.gather(*(run.settled() for run in running))

    async def close(self) -> None:
        """Forget every response: the process ends."""
        await asyncio.gather(*(run.close() for run in list(self._runs.values())))
        self._runs.clear()

    async def _resumed(self, tenant: Tenant, response_id: str) -> None:
        """Wait for a response that is being taken over: until then it is found nowhere."""
        resuming = self._resuming.get((tenant.id, response_id))
        if resuming is not None:
            await asyncio.wait({resuming})

    async def _go_on(self, principal: Principal, response_id: str, after: int) -> ResponseRun:
        """Take over a response that was suspended; it stays so where that fails."""
        tenant = principal.tenant
        blob = await self._store.take_suspended(tenant.id, response_id)
        if blob is None:
            raise await self._store.no_stream(tenant, response_id)
        suspended = decoded(blob, SuspendedRun, response_id)
        if suspended is None:
            raise response_not_found(response_id)
        try:
            if suspended.engine != self._engine.info.hash_extras:
                raise response_not_found(response_id)
            check_position(after, len(suspended.events))
            async with self._store.claiming(tenant.id, suspended.resource):
                generation = await self._generations.go_on(principal, suspended.asked)
                return await self._run(
                    tenant, suspended.renderer(tenant), generation, suspended.events
                )
        except BaseException:
            await self._store.put_back(tenant, response_id, blob)
            raise

    async def _run(
        self,
        tenant: Tenant,
        renderer: ResponseRenderer,
        generation: Generation,
        events: Sequence[bytes | None] = (),
        on_socket: SocketHistory | None = None,
    ) -> ResponseRun:
        """Have a generation run, which is given back where that fails."""
        run = ResponseRun(
            tenant,
            renderer,
            generation,
            self._store,
            on_socket,
            self.metrics,
            self._kept,
            self._grace_seconds,
            forget=self._forget,
            events=events,
        )
        try:
            run.start()
        except BaseException:
            await generation.close()
            raise
        self._runs[tenant.id, renderer.resource.id] = run
        return run

    def _forget(self, run: ResponseRun) -> None:
        key = run.tenant_id, run.resource.id
        if self._runs.get(key) is run:
            del self._runs[key]
