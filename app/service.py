"""The service put together: one Starlette application over an engine and a tenant store."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute
from transformers import PreTrainedTokenizerBase

from app.chat_template import ChatTemplate
from app.context import Service
from app.history import History
from app.http_io import RequestIds, answering, routing_error
from app.limits import ServiceLimits
from app.metrics import Metrics
from app.responses import ModelNames, Responses
from app.routes.chat_completions import create_completion
from app.routes.compact import compact_conversation
from app.routes.models import get_model, list_models
from app.routes.ops import healthz, metrics, readyz
from app.routes.responses import cancel_response, create_response, get_response
from app.routes.responses_ws import responses_socket
from app.system_heads import SystemHeads
from app.turns import TurnBuilder
from app.warming import Warmer
from engine.client import EngineClient
from tenants.conversations import Conversations
from tenants.store import TenantStore
from tenants.system_prompts import SystemPrompts


def create_app(
    engine: EngineClient,
    tenants: TenantStore,
    prompts: SystemPrompts,
    conversations: Conversations,
    tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    limits: ServiceLimits,
    extra_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The ASGI application.

    Engine and store are started and closed by the caller; the application's lifespan owns only its
    own background work (warming).
    """
    metrics_registry = Metrics()
    template = ChatTemplate(tokenizer)
    heads = SystemHeads(prompts, template)
    turns = TurnBuilder(template, heads)
    history = History(conversations, limits.response_ttl_seconds, limits.history_cache_tokens)
    names = ModelNames(model_id)
    responses = Responses(engine, tokenizer, turns, history, names, limits, metrics_registry)
    warmer = Warmer(engine, tenants, prompts, heads)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(warmer.run())
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)

    app = Starlette(
        routes=[*_routes(), *extra_routes],
        middleware=[Middleware(RequestIds)],
        exception_handlers={HTTPException: routing_error},
        lifespan=lifespan,
    )
    app.state.service = Service(
        engine=engine,
        tenants=tenants,
        tokenizer=tokenizer,
        names=names,
        turns=turns,
        responses=responses,
        limits=limits,
        metrics=metrics_registry,
        started_at=int(time.time()),
    )
    return app


def _routes() -> list[BaseRoute]:
    return [
        WebSocketRoute("/v1/responses", responses_socket),
        Route("/v1/responses", answering(create_response, "responses"), methods=["POST"]),
        Route(
            "/v1/responses/compact", answering(compact_conversation, "compact"), methods=["POST"]
        ),
        Route("/v1/responses/{response_id}", answering(get_response, "responses"), methods=["GET"]),
        Route(
            "/v1/responses/{response_id}/cancel",
            answering(cancel_response, "responses"),
            methods=["POST"],
        ),
        Route(
            "/v1/chat/completions",
            answering(create_completion, "chat_completions"),
            methods=["POST"],
        ),
        Route("/v1/models", answering(list_models, "models"), methods=["GET"]),
        Route("/v1/models/{model:path}", answering(get_model, "models"), methods=["GET"]),
        Route("/healthz", answering(healthz, "ops"), methods=["GET"]),
        Route("/readyz", answering(readyz, "ops"), methods=["GET"]),
        Route("/metrics", answering(metrics, "ops"), methods=["GET"]),
    ]
