"""Who may read `/metrics`: operators who may read everything, and scrapers by a token of their own.

That token is looked at first, and from memory: figures are wanted when the store is down.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from app.admin.door import Door, bearer
from app.admin.ops import metrics
from app.admin.problems import as_problem, forbidden
from app.admin.token import MIN_CHARACTERS, AdminToken
from app.transport.http import answering

_PATH = "/metrics"


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
        return await metrics(request)

    return Route(_PATH, answering(answer, "ops"), methods=["GET"])
