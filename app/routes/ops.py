"""What an operator's tools ask: `/healthz`, `/readyz`, `/metrics`. None of them needs a key."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.context import Service
from app.transport.http import json_response
from engine.api import EngineStats
from engine.client import EngineUnavailable
from tenants.store import StoreUnavailable


async def healthz(_: Request) -> ASGIApp:
    """Whether the process answers."""
    return json_response({"status": "ok"})


async def readyz(request: Request) -> ASGIApp:
    """Whether requests are served: a round trip through the engine loop.

    A store that is down leaves the service ready, but degraded: known tenants chat on. So does a
    background loop that fails; it is named.
    """
    service: Service = request.app.state.service
    if service.draining.begun:
        return json_response({"status": "draining", "reason": "the service is stopping"}, 503)
    stats = await _engine_stats(service)
    if stats is None:
        answer = {"status": "unavailable", "reason": "the engine loop does not answer"}
        return json_response(answer, 503)
    try:
        async with asyncio.timeout(service.bounds.readiness_timeout_seconds):
            await service.stores.tenants.ping()
    except (StoreUnavailable, TimeoutError):
        return json_response({"status": "degraded", "reason": "the tenant store is down"})
    failing = service.supervisor.failing
    if failing:
        reason = f"background loops have failed and start again: {', '.join(failing)}"
        return json_response({"status": "degraded", "reason": reason})
    return json_response({"status": "ready"})


async def metrics(request: Request) -> ASGIApp:
    """Counters and gauges in Prometheus' text format."""
    service: Service = request.app.state.service
    service.metrics.observe_engine(await _engine_stats(service))
    return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")


async def _engine_stats(service: Service) -> EngineStats | None:
    try:
        async with asyncio.timeout(service.bounds.readiness_timeout_seconds):
            return await service.engine.stats()
    except (EngineUnavailable, TimeoutError):
        return None
