"""`GET /v1/models` and `GET /v1/models/{model}`: the model, and the tenant's adapters of it.

Anthropic's clients, which name the version of their API, are told of them in its words.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from app.context import Service, identified
from app.messages.models import model_page, sent_model
from app.routes.messages import headers, is_message_client
from app.transport.http import json_response
from app.wire.errors import ApiError
from app.wire.events import encode_json
from engine.model.weights import DEFAULT_MODEL
from tenants.records import AdapterRecord

_SMALL: Final = (
    "A small model that came along, and runs anywhere: it gets much wrong. "
    "`partywall models` lists stronger ones that this machine has memory for, and "
    "`partywall serve --model NAME` starts one."
)


async def list_models(request: Request) -> ASGIApp:
    """The model, and then each adapter that the tenant may name."""
    service, principal = await identified(request)
    adapters = await service.adapters.usable(principal)
    found = [_describe(service), *(_describe(service, one) for one in adapters)]
    if is_message_client(request):
        page = model_page(request.query_params.multi_items(), list(map(sent_model, found)))
        return json_response(encode_json(page), headers=headers())
    return json_response({"object": "list", "data": found})


async def get_model(request: Request) -> ASGIApp:
    """The model by its id, which may hold slashes, or with an adapter."""
    service, principal = await identified(request)
    name = request.path_params["model"]
    named = service.names.adapter_in(name)
    adapter = await service.adapters.meant(principal, name) if named else None
    found = _describe(service, adapter)
    if is_message_client(request):
        return json_response(encode_json(sent_model(found)), headers=headers())
    return json_response(found)


async def refuse_embeddings(request: Request) -> ASGIApp:
    """`POST /v1/embeddings`: the model has none, and clients are told so."""
    await identified(request)
    message = "This service generates text; it has no embeddings."
    raise ApiError(404, message, code="unsupported_endpoint")


def _describe(service: Service, adapter: AdapterRecord | None = None) -> dict[str, Any]:
    info, model = service.engine.info, service.names.model_id
    own = {"id": model, "created": service.started_at, "owned_by": "partywall"}
    if adapter is not None:
        created = int(adapter.created_at)
        own = {"id": f"{model}:{adapter.name}", "created": created, "owned_by": adapter.owner}
    parent = {} if adapter is None else {"parent": model}
    about = {"description": _SMALL} if model == DEFAULT_MODEL else {}
    return {
        **own,
        "object": "model",
        "context_window": info.max_context_tokens,
        "input_modalities": ["text", *(["image"] if service.generations.sight.sees else [])],
        **parent,
        **about,
    }
