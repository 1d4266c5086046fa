"""`/console`: pages that need no build step and load nothing from elsewhere.

The page is asked for each time, and its parts once: they lie below a name that is made of them all,
so that a browser which has them asks for none.
"""

from __future__ import annotations

import gzip
from hashlib import blake2b
from pathlib import Path
from typing import Final

from starlette.requests import Request
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
_PARTS: Final = b"PARTS/"
"""Before the parts that the page names."""
_BODY: Final = b"<body>"
_BODY_TO_SIGN_IN: Final = b"<body data-signs-in>"
_LEAST_GZIPPED: Final = 256
"""Bytes: less is hardly made any shorter."""
_UNUSED: Final = ("camera", "display-capture", "geolocation", "microphone", "payment", "usb")
"""What no script may ask of the browser."""


def _headers(provider: str | None) -> dict[str, str]:
    """Its own scripts, its own style, its own service; nothing else may be loaded, run or asked,
    but for the tokens of the origin where people sign in.
    """
    asked = "'self'" if provider is None else f"'self' {provider}"
    return {
        "content-security-policy": (
            f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src {asked}; "
            "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types partywall"
        ),
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": ", ".join(f"{name}=()" for name in _UNUSED),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }


def console_routes(provider: str | None = None) -> list[Route]:
    """The page and its parts. They need no token: they ask for one, and hold nothing.

    Where the page offers people to sign in, `provider` is the origin where they do.
    """
    files = {
        file.relative_to(_STATIC).as_posix(): file.read_bytes()
        for file in sorted(_STATIC.rglob("*"))
        if file.suffix in _MEDIA_TYPES
    }
    version = _digest(*(part for file in files.items() for part in (file[0].encode(), file[1])))
    page = files.pop(_PAGE).replace(_PARTS, f"{version}/".encode())
    if provider is not None:
        page = page.replace(_BODY, _BODY_TO_SIGN_IN)
    fixed = _headers(provider)
    # So that the page's parts can be named beside it, wherever a proxy has put it.
    to_the_folder = RedirectResponse("console/", headers=fixed | {"cache-control": "no-cache"})
    routes = [
        Route("/console", to_the_folder, methods=["GET"]),
        Route("/console/", _Told(page, _PAGE, fixed, "no-cache").answer, methods=["GET"]),
    ]
    for path, content in files.items():
        part = _Told(content, path, fixed, "max-age=31536000, immutable")
        routes.append(Route(f"/console/{version}/{path}", part.answer, methods=["GET"]))
    return routes


class _Told:
    """A file, whole or compressed, or that it is as it was."""

    def __init__(self, content: bytes, path: str, headers: dict[str, str], caching: str) -> None:
        self._content = content
        self._zipped = gzip.compress(content, 9, mtime=0) if len(content) >= _LEAST_GZIPPED else b""
        self._tag = f'"{_digest(content)}"'
        self._media_type = _MEDIA_TYPES[Path(path).suffix]
        self._headers = headers | {"cache-control": caching, "etag": self._tag}

    async def answer(self, request: Request) -> Response:
        """The endpoint."""
        if self._tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self._headers)
        content, headers = self._content, dict(self._headers)
        if self._zipped and "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["content-encoding"] = self._zipped, "gzip"
        return Response(content, headers=headers, media_type=self._media_type)


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=12)
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()
