"""`POST /v1/responses/compact`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.context import identified
from app.responses.compaction import compacted, generation_request
from app.transport.http import json_response, unless_gone
from app.wire.events import encode_json
from app.wire.responses import CompactBody


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
