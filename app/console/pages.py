"""`/console`: pages that need no build step and load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_MEDIA_TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# Its own scripts, its own style, its own service; nothing else may be loaded, run or asked.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def console_routes() -> list[Route]:
    """The page and its parts. They need no token: they ask for one, and hold nothing."""
    routes = [Route("/console", _to_the_folder)]
    for file in (files("app.console") / "static").iterdir():
        name, _, kind = file.name.rpartition(".")
        path = "" if (name, kind) == ("index", "html") else file.name
        routes.append(Route(f"/console/{path}", _serving(file.read_bytes(), _MEDIA_TYPES[kind])))
    return routes


def _serving(content: bytes, media_type: str) -> _Handler:
    async def serve(_: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=media_type)

    return serve


async def _to_the_folder(_: Request) -> Response:
    """So that the page's parts can be named beside it, wherever a proxy has put it."""
    return RedirectResponse("console/", headers=_HEADERS)
