"""The service put together: one Starlette application over an engine and a tenant store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Lifespan
from transformers import PreTrainedTokenizerBase

from app.admin.mount import admin_routes
from app.admin.token import AdminToken
from app.chat.stored import StoredCompletions
from app.context import Service
from app.conversations.earlier import EarlierItems
from app.conversations.store import ConversationStore
from app.generate.admission import Gate
from app.generate.begin import Generations, ModelNames
from app.generate.constraint import GrammarCheck
from app.generate.tool_formats.formats import ToolFormat
from app.prompt.conversation import PromptBuilder
from app.prompt.history import History
from app.prompt.system_prompts import RegisteredPrompts
from app.prompt.template import ChatTemplate
from app.responses.items import NamedItems
from app.responses.registry import Responses
from app.responses.store import ResponseStore
from app.routes.chat_completions import create_completion
from app.routes.compact import compact_conversation
from app.routes.completions import complete_text
from app.routes.conversations import (
    add_items,
    create_conversation,
    delete_conversation,
    delete_item,
    get_conversation,
    get_item,
    list_items,
    update_conversation,
)
from app.routes.models import get_model, list_models, refuse_embeddings
from app.routes.ops import healthz, metrics, readyz, readyz_with_reason, version
from app.routes.responses import (
    cancel_response,
    create_response,
    delete_response,
    get_response,
    list_input_items,
)
from app.routes.responses_ws import responses_socket
from app.routes.stored_completions import (
    delete_completion,
    get_completion,
    list_completions,
    list_messages,
    update_completion,
)
from app.routes.tokens import count_input, detokenize, tokenize
from app.stores import Stores
from app.transport.bounds import Bounds
from app.transport.http import Endpoint, answering, routing_error
from app.transport.intake import Intake
from app.transport.origins import cors
from app.transport.request_ids import RequestIds
from app.upkeep.connections import Connections
from app.upkeep.draining import Draining
from app.upkeep.late_writes import LateWrites
from app.upkeep.metrics import Metrics
from app.upkeep.supervision import Supervisor
from app.upkeep.warming import Warmer
from app.upkeep.workers import Workers
from engine.client import EngineClient


def create_app(
    engine: EngineClient,
    stores: Stores,
    tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    bounds: Bounds,
    tool_format: ToolFormat = "auto",
) -> Starlette:
    """What the tenants reach. `tool_format` is how the model writes the functions that it calls.

    Engine and stores are started and closed by the caller; the application's lifespan owns only its
    own background work (warming, leases, usage).
    """
    service = _assembled(engine, stores, tokenizer, model_id, bounds, tool_format)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with _background(service):
            yield

    return _application(service, _routes(), lifespan, cors(bounds.page_origins))


def _assembled(
    engine: EngineClient,
    stores: Stores,
    tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    bounds: Bounds,
    tool_format: ToolFormat,
) -> Service:
    """Every part with the parts that it works with."""
    metrics, workers = Metrics(), Workers()
    names = ModelNames(model_id)
    template = ChatTemplate(tokenizer, workers, engine.info.max_context_tokens, tool_format)
    registered = RegisteredPrompts(stores.prompts, template)
    history = History(stores.responses, bounds.response_ttl_seconds, bounds.history_cache_tokens)
    late, ttl_seconds = LateWrites(), bounds.response_ttl_seconds
    conversations = ConversationStore(stores.conversations, late, ttl_seconds)
    gate = Gate(stores.limiter, stores.usage, metrics, bounds.max_queued_requests)
    connections = Connections(stores.tenants, stores.groups, stores.limiter, engine)
    generations = Generations(
        engine=engine,
        tokenizer=tokenizer,
        names=names,
        template=template,
        prompts=PromptBuilder(template, registered),
        history=history,
        named_items=NamedItems(history, workers, bounds.max_body_bytes),
        conversations=EarlierItems(conversations, workers, bounds.max_body_bytes),
        gate=gate,
        connections=connections,
        metrics=metrics,
        default_max_tokens=bounds.default_max_output_tokens,
        max_logprob_bytes=bounds.max_logprob_bytes,
        grammars=GrammarCheck(workers),
    )
    return Service(
        engine=engine,
        stores=stores,
        names=names,
        history=history,
        conversations=conversations,
        completions=StoredCompletions(stores.completions, late, workers, ttl_seconds),
        late_writes=late,
        gate=gate,
        template=template,
        generations=generations,
        responses=_responses(
            engine, stores, model_id, bounds, history, conversations, generations, workers, metrics
        ),
        connections=connections,
        warmer=Warmer(engine, stores.tenants, stores.groups, stores.prompts, registered),
        workers=workers,
        intake=Intake(bounds),
        draining=Draining(gate),
        bounds=bounds,
        metrics=metrics,
        supervisor=Supervisor(metrics),
        started_at=int(time.time()),
    )


def _responses(
    engine: EngineClient,
    stores: Stores,
    model_id: str,
    bounds: Bounds,
    history: History,
    conversations: ConversationStore,
    generations: Generations,
    workers: Workers,
    metrics: Metrics,
) -> Responses:
    return Responses(
        generations,
        ResponseStore(
            history,
            conversations,
            workers,
            stores.suspended,
            stores.running,
            bounds.response_ttl_seconds,
        ),
        engine,
        workers,
        metrics,
        model_id=model_id,
        resume_grace_seconds=bounds.resume_grace_seconds,
        max_kept_event_bytes=bounds.max_kept_event_bytes,
    )


@contextlib.asynccontextmanager
async def _background(service: Service) -> AsyncIterator[None]:
    """What runs beside requests does so while this is entered; then all accounts are settled."""
    stores, running = service.stores, service.supervisor.running
    heeding = (
        service.connections,
        service.warmer,
        service.history,
        service.conversations,
        service.responses,
    )

    async def notify() -> None:
        """Pass the store's notices on; one subscription a process, by which they are counted."""
        async for change in stores.tenants.changes():
            for one in heeding:
                one.notice(change)

    # The meter outlives the gate, which settles what has ended before it is done.
    async with running(usage=stores.usage.run):
        async with running(
            warming=service.warmer.run,
            engine_starts=service.warmer.watch_engine,
            connections=service.connections.run,
            notices=notify,
            leases=service.gate.run,
            running=stores.running.run,
            late_writes=service.late_writes.run,
        ):
            yield
            await service.responses.close()
        await service.gate.close()
    service.workers.close()


def create_admin_app(service: Service, token: AdminToken) -> Starlette:
    """What operators and their tools reach: `/admin`, `/metrics`, and the probes again.

    It is served on an address of its own: figures about everybody are no tenant's business, and
    whoever takes all connections of the tenants' port takes none here.
    """
    routes = [
        Route("/healthz", answering(healthz, "ops"), methods=["GET"]),
        Route("/readyz", answering(readyz_with_reason, "ops"), methods=["GET"]),
        Route("/metrics", answering(metrics, "ops"), methods=["GET"]),
        *admin_routes(service, token),
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
        exception_handlers={HTTPException: routing_error},
        lifespan=lifespan,
    )
    app.state.service = service
    return app


def _routes() -> list[BaseRoute]:
    return [
        WebSocketRoute("/v1/responses", responses_socket),
        Route("/v1/responses", answering(create_response, "responses"), methods=["POST"]),
        Route(
            "/v1/responses/compact", answering(compact_conversation, "compact"), methods=["POST"]
        ),
        Route(
            "/v1/responses/input_tokens", answering(count_input, "input_tokens"), methods=["POST"]
        ),
        Route("/v1/responses/{response_id}", answering(get_response, "responses"), methods=["GET"]),
        Route(
            "/v1/responses/{response_id}",
            answering(delete_response, "responses"),
            methods=["DELETE"],
        ),
        Route(
            "/v1/responses/{response_id}/input_items",
            answering(list_input_items, "responses"),
            methods=["GET"],
        ),
        Route(
            "/v1/responses/{response_id}/cancel",
            answering(cancel_response, "responses"),
            methods=["POST"],
        ),
        *_of("conversations", _CONVERSATIONS),
        *_of("chat_completions", _STORED_COMPLETIONS),
        Route(
            "/v1/chat/completions",
            answering(create_completion, "chat_completions"),
            methods=["POST"],
        ),
        Route("/v1/completions", answering(complete_text, "completions"), methods=["POST"]),
        Route("/v1/embeddings", answering(refuse_embeddings, "embeddings"), methods=["POST"]),
        Route("/tokenize", answering(tokenize, "tokenize"), methods=["POST"]),
        Route("/detokenize", answering(detokenize, "detokenize"), methods=["POST"]),
        Route("/v1/models", answering(list_models, "models"), methods=["GET"]),
        Route("/v1/models/{model:path}", answering(get_model, "models"), methods=["GET"]),
        Route("/healthz", answering(healthz, "ops"), methods=["GET"]),
        Route("/readyz", answering(readyz, "ops"), methods=["GET"]),
        Route("/health", answering(readyz, "ops"), methods=["GET"]),
        Route("/version", answering(version, "ops"), methods=["GET"]),
    ]


_CONVERSATION = "/v1/conversations/{conversation_id}"
_CONVERSATIONS: list[tuple[str, str, Endpoint]] = [
    ("POST", "/v1/conversations", create_conversation),
    ("GET", _CONVERSATION, get_conversation),
    ("POST", _CONVERSATION, update_conversation),
    ("DELETE", _CONVERSATION, delete_conversation),
    ("POST", f"{_CONVERSATION}/items", add_items),
    ("GET", f"{_CONVERSATION}/items", list_items),
    ("GET", f"{_CONVERSATION}/items/{{item_id}}", get_item),
    ("DELETE", f"{_CONVERSATION}/items/{{item_id}}", delete_item),
]
_COMPLETION = "/v1/chat/completions/{completion_id}"
_STORED_COMPLETIONS: list[tuple[str, str, Endpoint]] = [
    ("GET", "/v1/chat/completions", list_completions),
    ("GET", _COMPLETION, get_completion),
    ("POST", _COMPLETION, update_completion),
    ("DELETE", _COMPLETION, delete_completion),
    ("GET", f"{_COMPLETION}/messages", list_messages),
]


def _of(counted_as: str, endpoints: Sequence[tuple[str, str, Endpoint]]) -> list[Route]:
    return [
        Route(path, answering(endpoint, counted_as), methods=[method])
        for method, path, endpoint in endpoints
    ]
