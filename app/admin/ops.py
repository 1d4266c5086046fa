"""What an operator's tools ask: probes and a version, without a key, and elsewhere `/metrics`.

That is for operators who may read everything, and for scrapers with a token of their own. It is
looked at first, and from memory: figures are wanted when the store is down.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from app.admin.door import Door, bearer
from app.admin.problems import as_problem, forbidden
from app.admin.token import MIN_CHARACTERS, AdminToken
from app.context import Service
from app.transport.http import answering, json_response
from engine.api import EngineStats, EngineUnavailable
from tenants.errors import StoreReadOnly, StoreUnavailable

_PATH = "/metrics"


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


async def _metrics(request: Request) -> ASGIApp:
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


@dataclass(frozen=True)
class Scraping:
    """What opens `/metrics` and nothing else; where `is_open`, nothing is asked for."""

    token: AdminToken | None = None
    is_open: bool = False

    async def admit(self, request: Request, door: Door) -> None:
        """Raises `Problem` 401 or 403, `IssuerUnavailable` and `StoreUnavailable`."""
        if self.is_open:
            return
        given = bearer(request)
        if self.token is not None and self.token.holder(given) is not None:
            return
        operator = await door.holder(given)
        if not operator.may("GET", _PATH, None):
            raise forbidden(operator)


def read_scraping(token_file: Path | None, is_open: bool) -> Scraping:
    """Raises `ValueError` for a token that is too short to be safe, or is none, and `OSError`."""
    if token_file is None:
        return Scraping(is_open=is_open)
    token = token_file.read_text().strip()
    if len(token) < MIN_CHARACTERS or len(token.split()) != 1:
        raise ValueError(
            f"metrics_token_file: it holds one token of at least {MIN_CHARACTERS} characters"
        )
    return Scraping(AdminToken.of(token), is_open)


def metrics_route(door: Door, scraping: Scraping) -> Route:
    """`/metrics`, for whom `scraping` admits."""

    async def answer(request: Request) -> ASGIApp:
        try:
            await scraping.admit(request, door)
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                raise
            return problem.response()
        return await _metrics(request)

    return Route(_PATH, answering(answer, "ops"), methods=["GET"])
