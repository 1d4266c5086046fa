"""`/admin`: tenants, keys, prompts, groups, usage, audit and a live view, for operators.

`/admin/openapi.json` and `/admin/docs` need no token: what can be asked is no secret.
"""

from __future__ import annotations

import asyncio
import re
from copy import copy
from functools import lru_cache
from importlib.resources import files

import msgspec
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route

from app.admin.door import Door, WriteRate
from app.admin.problems import ProblemDocument, routing_problem
from app.admin.route import AdminRoute
from app.admin.routes import (
    adapters,
    audit,
    cache,
    demonstration,
    groups,
    keys,
    live,
    operators,
    prompts,
    sharing,
    tenants,
    usage,
    wall,
)
from app.context import Service
from app.transport.http import json_response
from app.transport.openapi import JsonObject, openapi_document

__all__ = ["ROUTES", "admin_routes"]

PREFIX = "/admin"
_DESCRIPTION = """\
For operators. Errors are problem documents (RFC 9457) that name the fields at fault. Every write
takes an `Idempotency-Key`, every patch an `If-Match`. Lists come in pages: `next` is the `after` of
the page behind. Times are UTC."""
_TAGS = {
    "Tenants": "Customers: their share of the engine, and their limits.",
    "API keys": "Several for each tenant, each with a name; a key itself is shown once.",
    "System prompts": "Registered texts, whose KV blocks all requests of a tenant share.",
    "Adapters": "Low-rank changes (LoRA) of the model's weights, which are a tenant's own.",
    "Share groups": "Tenants that share the prompts and adapters of a group, and nothing else.",
    "Group prompts": "System prompts that all tenants in a share group share.",
    "Group adapters": "Adapters that all tenants in a share group may use.",
    "Usage": "What a tenant used, by day.",
    "Audit": "Who changed what.",
    "Admin tokens": "Those of the store, for who may do everything, and whose the one sent is.",
    "Signing in": "Where a page has people sign in; needs no token.",
    "Live view": "What this replica is doing.",
}
# The page runs its own script and reads its own document; nothing else may be loaded or sent.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# What is told of requests, and to whom, is the service's own business.
_NO_TELEMETRY: TelemetryConfig = {
    **{"tracing": False, "metrics": False, "logs": False},
    **{"operation_spans": False, "auto_configure": False},
}
_ROUTERS = [
    *(tenants.router, keys.router, *prompts.ROUTERS.values(), *adapters.ROUTERS.values()),
    groups.router,
    *(usage.router, audit.router, live.router, sharing.router, cache.router, wall.router),
    demonstration.router,
    *(operators.router, operators.signing_in),
]
ROUTES = [route for router in _ROUTERS for route in router.routes if isinstance(route, AdminRoute)]
for _route in ROUTES:
    if _route.method == "GET":
        _route.methods.add("HEAD")  # as all of HTTP has it


def admin_routes(service: Service, door: Door) -> list[BaseRoute]:
    """Everything under `/admin`, for whom the door lets in."""
    app = FastAPI(
        routes=[*_docs_routes(), *ROUTES],
        exception_handlers={HTTPException: _routing_error},
        redirect_slashes=False,
        openapi_url=None,
        telemetry=_NO_TELEMETRY,
    )
    app.state.service, app.state.door = service, door
    app.state.write_rate = WriteRate(service.bounds.admin_writes_per_minute)
    mount = Mount(PREFIX, app=app)
    # Its pattern ends at a line break, and what has one would be answered by somebody else.
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return [mount]


@lru_cache
def admin_document() -> JsonObject:
    """The OpenAPI document, which is made once it is asked for."""
    documented = [copy(route) for route in ROUTES]
    for route in documented:
        route.methods = {route.method}
    return openapi_document(
        documented,
        tags=_TAGS,
        security="token",
        types={"ProblemDocument": ProblemDocument},
        title="Partywall admin API",
        version="1",
        description=_DESCRIPTION,
        servers=[{"url": PREFIX}],
    )


def _docs_routes() -> list[Route]:
    """Those of the OpenAPI document, and of the page that shows it."""
    page = (files("app.admin") / "docs.html").read_bytes()

    async def openapi(_: Request) -> Response:
        return json_response(msgspec.json.encode(await asyncio.to_thread(admin_document)))

    async def docs(_: Request) -> Response:
        headers = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
        return Response(page, headers=headers, media_type="text/html")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if "Allow" in headers:
        # That of the one route that was asked; a path may have several, each with its method.
        here = [one for one in ROUTES if one.matches(request.scope)[0] is not Match.NONE]
        methods = {method for one in here for method in one.methods}
        headers["Allow"] = ", ".join(sorted(methods)) or headers["Allow"]
    return routing_problem(error.status_code, error.detail, headers).response()
