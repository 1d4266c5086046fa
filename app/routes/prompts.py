"""`GET /v1/prompts`: the registered prompts that a tenant's requests may name."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from app.context import identified
from app.routes.list_queries import first_of, take_page
from app.transport.http import json_response
from app.wire.errors import invalid_request
from tenants.prompts.variables import variables
from tenants.records import SystemPrompt


async def list_prompts(request: Request) -> ASGIApp:
    """By name, behind the name `after`. A page of texts has to be read, so that it is a request."""
    service, principal = await identified(request)
    query = take_page(request.query_params.multi_items(), "asc")
    if query.newest_first:
        raise invalid_request("Prompts are in the order of their names: 'asc'.", "order")
    async with service.generations.counted(principal):
        found = await service.registered.named(principal, query.after, query.limit + 1)
    return json_response(first_of(query, list(map(_described, found))))


def _described(prompt: SystemPrompt) -> dict[str, Any]:
    """What a request has to know of it; the text is the operator's."""
    return {
        "id": prompt.name,
        "object": "prompt",
        "version": str(prompt.version),
        "variables": sorted(set(variables(prompt.text))),
    }
