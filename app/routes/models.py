"""`GET /v1/models` and `GET /v1/models/{model}`: the one model that is served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from app.context import Service, identified
from app.transport.http import json_response
from app.wire.errors import ApiError


async def list_models(request: Request) -> ASGIApp:
    """The list with its one entry."""
    service, _ = await identified(request)
    return json_response({"object": "list", "data": [_describe(service)]})


async def get_model(request: Request) -> ASGIApp:
    """The model by its id, which may hold slashes."""
    service, _ = await identified(request)
    service.names.check(request.path_params["model"])
    return json_response(_describe(service))


async def refuse_embeddings(request: Request) -> ASGIApp:
    """`POST /v1/embeddings`: the model has none, and clients are told so."""
    await identified(request)
    message = "This service generates text; it has no embeddings."
    raise ApiError(404, message, code="unsupported_endpoint")


def _describe(service: Service) -> dict[str, Any]:
    info = service.engine.info
    return {
        "id": service.names.model_id,
        "object": "model",
        "created": service.started_at,
        "owned_by": "partywall",
        "context_window": info.max_context_tokens,
    }
