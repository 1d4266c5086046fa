"""`/admin`: tenants, keys, prompts, groups, usage, audit and a live view, for operators."""

from __future__ import annotations

import re

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from app.admin.docs import admin_document, docs_routes
from app.admin.door import Door
from app.admin.endpoint import Endpoint
from app.admin.problems import routing_problem
from app.admin.routes import (
    audit,
    cache,
    groups,
    keys,
    live,
    me,
    prompts,
    sign_in,
    tenants,
    tokens,
    usage,
    wall,
)
from app.admin.write_rate import WriteRate
from app.context import Service

__all__ = ["ENDPOINTS", "admin_routes"]

PREFIX = "/admin"

ENDPOINTS = [
    *tenants.ENDPOINTS,
    *keys.ENDPOINTS,
    *prompts.ENDPOINTS,
    *groups.ENDPOINTS,
    *usage.ENDPOINTS,
    *audit.ENDPOINTS,
    *live.ENDPOINTS,
    *cache.ENDPOINTS,
    *wall.ENDPOINTS,
    *tokens.ENDPOINTS,
    *me.ENDPOINTS,
    *sign_in.ENDPOINTS,
]
_DOCUMENT = admin_document(PREFIX, [one.operation for one in ENDPOINTS])


def admin_routes(service: Service, door: Door) -> list[BaseRoute]:
    """Everything under `/admin`, for whom the door lets in."""
    rate = WriteRate(service.bounds.admin_writes_per_minute)
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in ENDPOINTS:
        by_path.setdefault(one.operation.path, {})[one.operation.method] = one
    routes = [
        *docs_routes(_DOCUMENT),
        *(_route(path, endpoints, service, door, rate) for path, endpoints in by_path.items()),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _routing_error})
    app.router.redirect_slashes = False
    mount = Mount(PREFIX, app=app)
    # Its pattern ends at a line break, and what has one would be answered by somebody else.
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return [mount]


def _route(
    path: str, endpoints: dict[str, Endpoint], service: Service, door: Door, rate: WriteRate
) -> Route:
    """One path with all its methods, so that a 405 names them all."""

    async def answer(request: Request) -> Response:
        # Whatever Starlette lets through besides is the HEAD of a GET.
        chosen = endpoints.get(request.method) or endpoints["GET"]
        return await chosen.answer(service, door, rate, request)

    return Route(path, answer, methods=list(endpoints))


async def _routing_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return routing_problem(error.status_code, error.detail, error.headers).response()
