"""`/admin`: tenants, keys, prompts, groups, usage, audit and a live view, for operators."""

from __future__ import annotations

import re

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount

from app.admin.docs import admin_document, docs_routes
from app.admin.door import Door
from app.admin.problems import routing_problem
from app.admin.route import AdminRoute
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

__all__ = ["ROUTES", "admin_routes"]

PREFIX = "/admin"

# What is told of requests, and to whom, is the service's own business.
_NO_TELEMETRY: TelemetryConfig = {
    **{"tracing": False, "metrics": False, "logs": False},
    **{"operation_spans": False, "auto_configure": False},
}
_ROUTERS = [
    *(tenants.router, keys.router, *prompts.ROUTERS.values(), groups.router),
    *(usage.router, audit.router, live.router, cache.router, wall.router),
    *(tokens.router, me.router, sign_in.router),
]
ROUTES = [route for router in _ROUTERS for route in router.routes if isinstance(route, AdminRoute)]
DOCUMENT = admin_document(PREFIX, ROUTES)
for _route in ROUTES:
    if _route.method == "GET":
        _route.methods.add("HEAD")  # as all of HTTP has it: it is not documented


def admin_routes(service: Service, door: Door) -> list[BaseRoute]:
    """Everything under `/admin`, for whom the door lets in."""
    app = FastAPI(
        routes=[*docs_routes(DOCUMENT), *ROUTES],
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


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if "Allow" in headers:
        # That of the one route that was asked; a path may have several, each with its method.
        here = [one for one in ROUTES if one.matches(request.scope)[0] is not Match.NONE]
        methods = {method for one in here for method in one.methods}
        headers["Allow"] = ", ".join(sorted(methods)) or headers["Allow"]
    return routing_problem(error.status_code, error.detail, headers).response()
