"""`/v1/responses` over HTTP: create (JSON or SSE), retrieve, resume (SSE), list, cancel, delete,
compact.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from app.context import Service, identified
from app.responses.compaction import compacted, generation_request
from app.responses.run import ResponseRun
from app.responses.sequence_numbers import read_position
from app.routes.list_queries import page, refuse_others, take_include, take_page
from app.transport.bounds import INLINE_BYTES
from app.transport.http import json_response, unless_gone
from app.transport.server_sent_events import SSE_DONE, EventStream, sse_event
from app.wire.errors import ApiError, invalid_request
from app.wire.events import encode_json, event_type
from app.wire.responses import CompactBody, CreateBody


async def create_response(request: Request) -> ASGIApp:
    """`POST /v1/responses`. A stream outlives its reader for a while; a whole answer does not."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, CreateBody, principal)
    run = await unless_gone(request, service.responses.start(principal, body))
    if body.stream:
        return _stream(service, run, -1)
    if body.background:
        return json_response(run.snapshot(), headers=run.headers)
    try:
        await unless_gone(request, _read_all(run))
    finally:
        run.discard()
    if run.generation.failure is not None:
        raise run.generation.failure
    return json_response(run.snapshot(), headers=run.headers)


async def get_response(request: Request) -> ASGIApp:
    """`GET /v1/responses/{response_id}`: the response, or its events after `starting_after`.

    The query is `stream` ("true" or "false") and, for a stream, `starting_after`; all that could be
    asked for with `include` is there.
    """
    service, principal = await identified(request)
    response_id = request.path_params["response_id"]
    after = _starting_after(request)
    if after is None:
        return json_response(await service.responses.retrieve(principal, response_id))
    run = await service.responses.resume(principal, response_id, after)
    return _stream(service, run, after)


async def delete_response(request: Request) -> ASGIApp:
    """`DELETE /v1/responses/{response_id}`: it ends, if it runs, and is forgotten everywhere."""
    service, principal = await identified(request)
    response_id = request.path_params["response_id"]
    await service.responses.delete(principal.tenant, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(request: Request) -> ASGIApp:
    """`GET /v1/responses/{response_id}/input_items`: what the request brought by itself."""
    service, principal = await identified(request)
    query = take_page(take_include(request.query_params.multi_items()))
    items = await service.responses.input_items(
        principal.tenant, request.path_params["response_id"]
    )

    def work() -> bytes:
        return msgspec.json.encode(page(query, msgspec.json.decode(items)))

    short = len(items) <= INLINE_BYTES
    return json_response(work() if short else await service.workers.run(principal.tenant.id, work))


async def cancel_response(request: Request) -> ASGIApp:
    """`POST /v1/responses/{response_id}/cancel`: 400 for one that has ended otherwise."""
    service, principal = await identified(request)
    return json_response(
        await service.responses.cancel(principal.tenant, request.path_params["response_id"])
    )


async def compact_conversation(request: Request) -> ASGIApp:
    """Replace a conversation by its summary."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, CompactBody, principal)
    asked = generation_request(body)
    generation = await unless_gone(request, service.generations.begin(principal, asked))
    try:
        resource = await unless_gone(request, compacted(principal, body, generation))
        return json_response(encode_json(resource), headers=generation.ticket.headers)
    finally:
        await generation.close()


def _starting_after(request: Request) -> int | None:
    """The event after which a stream is asked for, -1 for all of it; `None` without a stream."""
    query = dict(take_include(request.query_params.multi_items()))
    stream = query.pop("stream", "false")
    if stream not in ("true", "false"):
        raise invalid_request("'stream' is 'true' or 'false'.", "stream")
    after = query.pop("starting_after", None) if stream == "true" else None
    refuse_others(list(query.items()))
    return None if stream == "false" else read_position(after)


def _stream(service: Service, run: ResponseRun, after: int) -> EventStream:
    events = _sse(run.follow(after))
    return EventStream(events, events.aclose, service.bounds, headers=run.headers)


async def _sse(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        try:
            async for event in events:
                yield sse_event(event, event_type(event))
        except ApiError as error:
            yield sse_event(msgspec.json.encode(error.detail() | {"type": "error"}), b"error")
    yield SSE_DONE


async def _read_all(run: ResponseRun) -> None:
    async with aclosing(run.follow()) as events:
        async for _ in events:
            pass
