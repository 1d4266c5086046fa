"""`POST /v1/completions`, as JSON or as server-sent chunks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.completions.run import CompletionRun
from app.context import identified
from app.transport.http import json_response, unless_gone
from app.transport.server_sent_events import EventStream
from app.wire.completions import CompletionBody


async def complete_text(request: Request) -> ASGIApp:
    """Continue texts as they are."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, CompletionBody, principal)
    run = CompletionRun(service, principal, body)
    if not body.stream:
        return json_response(await unless_gone(request, run.whole()), headers=run.headers)
    answer = await unless_gone(request, run.begin())
    return EventStream(run.chunks(answer), answer.generation.close, service.bounds, run.headers)
