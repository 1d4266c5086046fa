"""`POST /v1/responses/compact`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.auth import authenticate
from app.context import Service
from app.responses.compaction import compact
from app.transport.http import json_response, read_json, unless_gone
from app.wire.common import parse
from app.wire.responses import CompactBody


async def compact_conversation(request: Request) -> ASGIApp:
    """Replace a conversation by its summary."""
    service: Service = request.app.state.service
    service.draining.check()
    principal = await authenticate(service.tenants, request)
    body = parse(CompactBody, await read_json(request, service.limits.max_body_bytes))
    answer, headers = await unless_gone(request, compact(service, principal, body))
    return json_response(answer, headers=headers)
