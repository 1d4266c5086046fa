"""`/console`: pages that need no build step and load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_MEDIA_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
}
_STATIC: Final = Path(__file__).with_name("static")
_PAGE: Final = "index.html"
_BODY: Final = b"<body>"
_BODY_TO_SIGN_IN: Final = b"<body data-signs-in>"


def _headers(provider: str | None) -> dict[str, str]:
    """Its own scripts, its own style, its own service; nothing else may be loaded, run or asked,
    but for the tokens of the origin where people sign in.
    """
    asked = "'self'" if provider is None else f"'self' {provider}"
    return {
        "content-security-policy": (
            f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src {asked}; "
            "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }


def console_routes(provider: str | None = None) -> list[Route]:
    """The page and its parts. They need no token: they ask for one, and hold nothing.

    Where the page offers people to sign in, `provider` is the origin where they do.
    """
    headers = _headers(provider)
    # So that the page's parts can be named beside it, wherever a proxy has put it.
    to_the_folder = RedirectResponse("console/", headers=headers)
    routes = [Route("/console", to_the_folder, methods=["GET"])]
    for file in sorted(filter(Path.is_file, _STATIC.rglob("*"))):
        path, content = file.relative_to(_STATIC).as_posix(), file.read_bytes()
        if path == _PAGE and provider is not None:
            content = content.replace(_BODY, _BODY_TO_SIGN_IN)
        shown = "" if path == _PAGE else path
        answer = Response(content, headers=headers, media_type=_MEDIA_TYPES[file.suffix])
        routes.append(Route(f"/console/{shown}", answer, methods=["GET"]))
    return routes
