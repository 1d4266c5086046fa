"""What an operator's tools ask: probes and a version, without a key, and elsewhere `/metrics`."""

from __future__ import annotations

import asyncio
from importlib import metadata

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.context import Service
from app.transport.http import json_response
from engine.api import EngineStats, EngineUnavailable
from tenants.errors import StoreReadOnly, StoreUnavailable


async def healthz(_: Request) -> ASGIApp:
    """Whether the process answers."""
    return json_response({"status": "ok"})


async def version(_: Request) -> ASGIApp:
    """Which version of the service this is."""
    return json_response({"version": metadata.version("partywall")})


async def readyz(request: Request) -> ASGIApp:
    """Whether requests are served, and no more than that: tenants' clients may ask."""
    status, (word, _) = await _readiness(request.app.state.service)
    return json_response({"status": word}, status)


async def readyz_with_reason(request: Request) -> ASGIApp:
    """The same for operators, who are told why not."""
    status, (word, reason) = await _readiness(request.app.state.service)
    return json_response({"status": word} | ({"reason": reason} if reason else {}), status)


async def _readiness(service: Service) -> tuple[int, tuple[str, str | None]]:
    """A status, a word for it, and the reason; it takes a round trip through the engine loop.

    A store that is down leaves the service ready, but degraded: known tenants chat on. So does a
    background loop that fails; it is named.
    """
    if service.draining.begun:
        return 503, ("draining", "the service is stopping")
    if service.engine.trouble is not None:
        return 503, ("unavailable", service.engine.trouble)
    if await engine_stats(service) is None:
        return 503, ("unavailable", "the engine loop does not answer")
    trouble = await _store_trouble(service)
    if trouble is not None:
        return 200, ("degraded", trouble)
    failing = service.supervisor.failing
    if failing:
        names = ", ".join(failing)
        return 200, ("degraded", f"background loops have failed and start again: {names}")
    return 200, ("ready", None)


async def metrics(request: Request) -> ASGIApp:
    """Counters and gauges in a text format of Prometheus' or OpenMetrics, as is asked for."""
    service: Service = request.app.state.service
    stats, trouble = await asyncio.gather(engine_stats(service), _store_trouble(service))
    service.metrics.engine.observe(stats)
    service.metrics.fleet.observe(service.engine.fleet)
    service.metrics.store_up.set(trouble is None)
    text, media_type = service.metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": media_type})


async def engine_stats(service: Service) -> EngineStats | None:
    """A snapshot of the engine's books, if it comes in the time that a probe has."""
    try:
        async with asyncio.timeout(service.bounds.readiness_timeout_seconds):
            return await service.engine.stats()
    except (EngineUnavailable, TimeoutError):
        return None


async def _store_trouble(service: Service) -> str | None:
    """Why the tenant store takes no writes, if it does not."""
    try:
        async with asyncio.timeout(service.bounds.readiness_timeout_seconds):
            await service.stores.tenants.ping()
    except StoreReadOnly as error:
        return f"the tenant store takes no writes: {error.reason}"
    except (StoreUnavailable, TimeoutError):
        return "the tenant store is down, or takes no writes"
    return None
