"""`/v1/chat/completions`: made, as JSON or as server-sent chunks, and those that are stored."""

from __future__ import annotations

import re

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from app.chat.completion import Completion
from app.chat.parse import generation_request
from app.chat.stored import Wanted
from app.context import identified
from app.routes.list_queries import listed, not_listed, page, take_page
from app.transport.http import json_response, unless_gone
from app.transport.server_sent_events import EventStream
from app.wire.chat import ChatBody
from app.wire.items import MetadataBody

_METADATA = re.compile(r"metadata\[(.+)\]", re.DOTALL)


async def create_completion(request: Request) -> ASGIApp:
    """Answer the last message of a conversation."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, ChatBody, principal)
    asked = generation_request(body)
    generation = await unless_gone(request, service.generations.begin(principal, asked))
    keep = service.completions.keeping(principal.tenant, body) if body.store else None
    completion = Completion(
        body, asked.candidates, generation, service.names.shown(body.model), service.metrics, keep
    )
    headers = generation.ticket.headers
    if body.stream:
        chunks = completion.chunks()
        return EventStream(chunks, generation.close, service.bounds, headers)
    try:
        answer = await unless_gone(request, completion.whole())
        return json_response(answer, headers=headers)
    finally:
        await generation.close()


async def list_completions(request: Request) -> ASGIApp:
    """`GET /v1/chat/completions`: oldest first, unless asked otherwise.

    The query is `model`, `metadata[KEY]`, `limit`, `order` and `after`. All that the tenant has
    stored may have to be looked at, so that a list counts as a request.
    """
    service, principal = await identified(request)
    wanted, rest = _take_wanted(request.query_params.multi_items())
    query = take_page(rest, "asc")
    async with service.generations.counted(principal):
        found = await service.completions.listed(
            principal.tenant.id,
            wanted,
            query.after,
            newest_first=query.newest_first,
            limit=query.limit,
        )
    if found is None:
        raise not_listed(query.after or "")
    shown, has_more = found
    return json_response(msgspec.json.encode(listed(shown, has_more=has_more)))


async def get_completion(request: Request) -> ASGIApp:
    """`GET /v1/chat/completions/{completion_id}`."""
    service, principal = await identified(request)
    kept = await service.completions.load(principal.tenant.id, request.path_params["completion_id"])
    return json_response(bytes(kept.shown))


async def update_completion(request: Request) -> ASGIApp:
    """`POST /v1/chat/completions/{completion_id}`: with other metadata from now on."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, MetadataBody, principal)
    completion_id = request.path_params["completion_id"]
    async with service.generations.counted(principal):
        kept = await service.completions.update(
            principal.tenant, completion_id, body.metadata or {}
        )
    return json_response(bytes(kept.shown))


async def delete_completion(request: Request) -> ASGIApp:
    """`DELETE /v1/chat/completions/{completion_id}`."""
    service, principal = await identified(request)
    completion_id = request.path_params["completion_id"]
    await service.completions.delete(principal.tenant.id, completion_id)
    deleted = {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
    return json_response(deleted)


async def list_messages(request: Request) -> ASGIApp:
    """`GET /v1/chat/completions/{completion_id}/messages`: those of its request, first to last."""
    service, principal = await identified(request)
    query = take_page(request.query_params.multi_items(), "asc")
    kept = await service.completions.load(principal.tenant.id, request.path_params["completion_id"])

    def work() -> bytes:
        return msgspec.json.encode(page(query, msgspec.json.decode(kept.messages)))

    return json_response(await service.workers.run(principal.tenant.id, work))


def _take_wanted(query: list[tuple[str, str]]) -> tuple[Wanted, list[tuple[str, str]]]:
    """What a query filters by, and the rest of it."""
    model, metadata, rest = None, {}, []
    for name, value in query:
        matched = _METADATA.fullmatch(name)
        if matched is not None:
            metadata[matched[1]] = value
        elif name == "model":
            model = value
        else:
            rest.append((name, value))
    return Wanted(model, metadata), rest
