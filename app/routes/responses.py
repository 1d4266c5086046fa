"""`/v1/responses` over HTTP: create (JSON or SSE), retrieve, cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.types import ASGIApp

from app.auth import authenticate
from app.context import Service
from app.errors import ApiError
from app.http_io import json_response, read_json, unless_gone
from app.responses import ResponseRun
from app.sse import EventStream
from app.wire import parse
from app.wire_events import encode_event
from app.wire_responses import CreateBody

_CANCEL_SECONDS = 1.0


async def create_response(request: Request) -> ASGIApp:
    """`POST /v1/responses`."""
    service: Service = request.app.state.service
    tenant = await authenticate(service.tenants, request)
    body = parse(CreateBody, await read_json(request, service.limits.max_body_bytes))
    run = await unless_gone(request, service.responses.start(tenant, body))
    if body.stream:
        return EventStream(_sse(run), run.close, service.limits.send_deadline_seconds)
    try:
        await unless_gone(request, _drain(run))
    finally:
        await run.close()
    if run.resource.error is not None:
        raise ApiError(500, run.resource.error.message, code="server_error")
    return json_response(run.snapshot())


async def get_response(request: Request) -> ASGIApp:
    """`GET /v1/responses/{response_id}`."""
    service: Service = request.app.state.service
    tenant = await authenticate(service.tenants, request)
    return json_response(
        await service.responses.retrieve(tenant, request.path_params["response_id"])
    )


async def cancel_response(request: Request) -> ASGIApp:
    """`POST /v1/responses/{response_id}/cancel`: a finished response is returned unchanged."""
    service: Service = request.app.state.service
    tenant = await authenticate(service.tenants, request)
    response_id = request.path_params["response_id"]
    run = service.responses.running(tenant, response_id)
    if run is None:
        return json_response(await service.responses.retrieve(tenant, response_id))
    await run.cancel()
    return json_response(await run.settled(_CANCEL_SECONDS))


async def _sse(run: ResponseRun) -> AsyncGenerator[bytes, None]:
    async with aclosing(run.events()) as events:
        async for event in events:
            yield b"event: %b\ndata: %b\n\n" % (event.type.encode(), encode_event(event))
    yield b"data: [DONE]\n\n"


async def _drain(run: ResponseRun) -> None:
    async with aclosing(run.events()) as events:
        async for _ in events:
            pass
