"""The service put together: one Starlette application over an engine and a tenant store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan
from transformers import PreTrainedTokenizerBase

from app.admin.door import Door
from app.admin.mount import admin_routes
from app.admin.ops import Scraping, healthz, metrics_route, readyz_with_reason, version
from app.background.booking import LeaseBooking, LeftUsage
from app.background.demonstration import Demonstration
from app.background.supervisor import Loop, Supervisor
from app.background.warming import Warmer
from app.background.webhooks import Webhook, WebhookSender
from app.chat.stored import StoredCompletions
from app.console.chat import operators_chat, tenants_chat
from app.console.pages import console_routes
from app.context import Service
from app.formats.reasoning.formats import ReasoningSetting
from app.formats.tools.formats import ToolFormat
from app.generation.adapters import NamedAdapters
from app.generation.begin import Generations
from app.generation.comparison import Comparisons
from app.generation.engine_request import Defaults, ModelNames
from app.generation.pictures import RunningPictures
from app.late_writes import LateWrites
from app.limits.admission import Gate
from app.limits.booking import Booking
from app.limits.connections import Connections
from app.limits.draining import Draining
from app.observe.metrics import Metrics
from app.pictures.fetching import Fetcher
from app.prompt.chat_template import ChatTemplate
from app.prompt.conversation import PromptBuilder
from app.prompt.history import History
from app.prompt.sight import Eyes, Sight
from app.prompt.system_prompts import RegisteredPrompts
from app.prompt.telling import Telling
from app.request.constraint import GrammarCheck
from app.responses.conversations import ConversationStore
from app.responses.items import NamedItems
from app.responses.kept_pictures import KeptPictures
from app.responses.registry import Responses
from app.responses.retelling import Retelling
from app.responses.store import ResponseStore
from app.routes.table import shape_of, tenant_routes
from app.shares import SharedRoom
from app.stores import Stores
from app.transport.bodies import Bodies, Intake
from app.transport.bounds import Bounds
from app.transport.http import answering, routing_error
from app.transport.origins import cors
from app.transport.request_ids import RequestIds
from app.workers import Workers
from engine.client import EngineClient
from tenants.usage.prices import NO_PRICES, PriceList

if TYPE_CHECKING:
    from app.generation.tracing import Tracing


def create_app(
    engine: EngineClient,
    stores: Stores,
    tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    bounds: Bounds,
    tool_format: ToolFormat = "auto",
    reasoning_format: ReasoningSetting = "auto",
    prices: PriceList = NO_PRICES,
    webhook: Webhook | None = None,
    tracing: Tracing | None = None,
    eyes: Eyes | None = None,
) -> Starlette:
    """What the tenants reach. `tool_format` is how the model writes the functions that it calls,
    and `reasoning_format` what it reasons; `prices` are its own. What is in the outbox of `stores`
    goes to `webhook`; `tracing` is told of requests. A model that sees has `eyes`.

    Engine and stores are started and closed by the caller; the application's lifespan owns only its
    own background work (warming, leases, usage).
    """
    formats = tool_format, reasoning_format
    service = _assembled(
        engine, stores, tokenizer, model_id, bounds, *formats, prices, tracing, eyes
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with _background(service, webhook):
            yield

    routes = [*tenant_routes(), *tenants_chat(), *console_routes()]
    return _application(service, routes, lifespan, cors(bounds.page_origins))


def _assembled(
    engine: EngineClient,
    stores: Stores,
    tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    bounds: Bounds,
    tool_format: ToolFormat,
    reasoning_format: ReasoningSetting,
    prices: PriceList,
    tracing: Tracing | None,
    eyes: Eyes | None,
) -> Service:
    """Every part with the parts that it works with."""
    metrics, workers = Metrics(bounds.metrics_tenants), Workers()
    names = ModelNames(model_id)
    adapters = NamedAdapters(names, engine, stores.adapters, stores.prompts)
    info = engine.info
    template = ChatTemplate(
        tokenizer,
        workers,
        info.max_context_tokens,
        tool_format,
        reasoning_format,
        info.picture_token_id,
    )
    registered = RegisteredPrompts(stores.prompts, template)
    fetcher = Fetcher(bounds.image_hosts, bounds.max_image_bytes, bounds.image_seconds)
    sees = None if info.picture_token_id is None else eyes
    intake = Intake(bounds)
    sight = Sight(
        sees,
        fetcher,
        stores.files,
        intake,
        workers,
        bounds.max_image_bytes,
        stores.limiter.defaults,
    )
    telling = Telling(registered, sight)
    prompts = PromptBuilder(template, registered, telling)
    late, ttl_seconds = LateWrites(), bounds.response_ttl_seconds
    history = History(stores.responses, ttl_seconds, bounds.history_cache_tokens)
    conversations = ConversationStore(stores.conversations, late, ttl_seconds)
    booking = Booking(stores.usage, prices)
    gate = Gate(stores.limiter, stores.budgets, booking, metrics, bounds.max_queued_requests)
    connections = Connections(stores.tenants, stores.groups, stores.limiter, engine)
    generations = Generations(
        engine=engine,
        tokenizer=tokenizer,
        names=names,
        adapters=adapters,
        sight=sight,
        pictures=RunningPictures(
            engine, sight, KeptPictures(history, conversations, workers).picture
        ),
        template=template,
        prompts=prompts,
        history=history,
        resolve=NamedItems(history, conversations, workers, bounds.max_body_bytes).resolve,
        retell=Retelling(history, workers, bounds.max_body_bytes).earlier,
        gate=gate,
        connections=connections,
        metrics=metrics,
        defaults=Defaults(
            max_tokens=bounds.default_max_output_tokens, lease_seconds=bounds.lease_seconds
        ),
        logprob_room=SharedRoom(bounds.max_logprob_bytes),
        grammars=GrammarCheck(workers),
        comparisons=Comparisons(history, engine, workers),
        tracing=tracing,
    )
    kept = ResponseStore(
        history, conversations, workers, stores.suspended, stores.running, ttl_seconds
    )
    responses = Responses(
        generations,
        kept,
        engine,
        workers,
        metrics,
        template.reasoning.unheeded,
        resume_grace_seconds=bounds.resume_grace_seconds,
        max_kept_event_bytes=bounds.max_kept_event_bytes,
    )
    return Service(
        engine=engine,
        stores=stores,
        names=names,
        adapters=adapters,
        history=history,
        conversations=conversations,
        completions=StoredCompletions(stores.completions, late, workers, ttl_seconds),
        late_writes=late,
        gate=gate,
        prices=prices,
        template=template,
        telling=telling,
        registered=registered,
        generations=generations,
        responses=responses,
        connections=connections,
        warmer=Warmer(engine, stores.tenants, stores.groups, stores.prompts, registered, booking),
        left_usage=LeftUsage(stores.usage),
        lease_booking=LeaseBooking(engine, booking, stores.usage),
        demonstration=Demonstration(engine, stores, generations, template, gate),
        workers=workers,
        intake=intake,
        bodies=Bodies(bounds, intake, workers, template.reasoning.unheeded),
        draining=Draining(gate),
        bounds=bounds,
        metrics=metrics,
        supervisor=Supervisor(metrics),
        started_at=int(time.time()),
    )


@contextlib.asynccontextmanager
async def _background(service: Service, webhook: Webhook | None) -> AsyncIterator[None]:
    """What runs beside requests does so while this is entered; then all accounts are settled."""
    stores, running = service.stores, service.supervisor.running
    heeding = (
        service.connections,
        service.warmer,
        service.history,
        service.conversations,
        service.responses,
        service.adapters,
    )

    async def notify() -> None:
        """Pass the store's notices on; one subscription a process, by which they are counted."""
        async for change in stores.tenants.changes():
            for one in heeding:
                one.notice(change)

    telling: dict[str, Loop] = {}
    if webhook is not None:
        telling["webhooks"] = WebhookSender(stores.outbox, webhook).run
    # The meter outlives the gate, which settles what has ended before it is done.
    async with running(usage=stores.usage.run):
        async with running(
            warming=service.warmer.run,
            engine_starts=service.warmer.watch_engine,
            connections=service.connections.run,
            notices=notify,
            leases=service.gate.keep_slots,
            lease_booking=service.lease_booking.run,
            left_usage=service.left_usage.run,
            demonstration=service.demonstration.run,
            running=stores.running.run,
            late_writes=service.late_writes.run,
            audit=stores.audit_keeper.run,
            **telling,
        ):
            yield
            await service.responses.close()
        await service.gate.close()
    service.workers.close()


def create_admin_app(service: Service, door: Door, scraping: Scraping | None = None) -> Starlette:
    """What operators and their tools reach: `/admin`, `/metrics`, and the probes again.

    It is served on an address of its own: figures about everybody are no tenant's business, and
    whoever takes all connections of the tenants' port takes none here.
    """
    routes = [
        Route("/healthz", answering(healthz, "ops"), methods=["GET"]),
        Route("/readyz", answering(readyz_with_reason, "ops"), methods=["GET"]),
        Route("/version", answering(version, "ops"), methods=["GET"]),
        metrics_route(door, scraping or Scraping()),
        *admin_routes(service, door),
        *operators_chat(door),
        *console_routes(None if door.people is None else door.people.page_origin),
    ]
    return _application(service, routes)


def _application(
    service: Service,
    routes: list[BaseRoute],
    lifespan: Lifespan[Starlette] | None = None,
    middleware: Sequence[Middleware] = (),
) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestIds), *middleware],
        exception_handlers={HTTPException: partial(routing_error, shape_of=shape_of)},
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.metrics = service.metrics
    return app
