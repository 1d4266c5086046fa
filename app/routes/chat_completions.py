"""`POST /v1/chat/completions`, as JSON or as server-sent chunks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.chat.completion import Completion
from app.chat.parse import generation_request
from app.context import identified
from app.transport.http import json_response, unless_gone
from app.transport.server_sent_events import EventStream
from app.wire.chat import ChatBody


async def create_completion(request: Request) -> ASGIApp:
    """Answer the last message of a conversation."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, ChatBody, principal)
    asked = generation_request(body)
    generation = await unless_gone(request, service.generations.begin(principal, asked))
    keep = service.completions.keeping(principal.tenant, body) if body.store else None
    completion = Completion(
        body, asked.candidates, generation, service.names.model_id, service.metrics, keep
    )
    if body.stream:
        chunks = completion.chunks()
        return EventStream(chunks, completion.close, service.bounds, completion.headers)
    try:
        answer = await unless_gone(request, completion.whole())
        return json_response(answer, headers=completion.headers)
    finally:
        await completion.close()
