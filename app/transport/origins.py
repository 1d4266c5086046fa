"""Whose pages a browser lets call this service: origins, as `--allowed-origins` lists them.

A key is needed anyway; this is about who may read answers. Browsers ask the server (CORS) for HTTP,
and for WebSockets only tell it the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection

from app.transport.http import IGNORED_HEADER
from app.transport.request_ids import CLIENT_HEADER as CLIENT_REQUEST_ID
from app.transport.request_ids import HEADER as REQUEST_ID
from app.wire.errors import ApiError

_METHODS = ("GET", "POST", "DELETE")
_LIMITS = [
    f"x-ratelimit-{what}-{kind}"
    for what in ("limit", "remaining", "reset")
    for kind in ("requests", "tokens")
]
_READABLE = [
    REQUEST_ID,
    CLIENT_REQUEST_ID,
    IGNORED_HEADER,
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    *_LIMITS,
]


def cors(origins: Sequence[str]) -> list[Middleware]:
    """What answers browsers' questions for `origins`; nothing where there are none."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_READABLE,
        )
    ]


def check_origin(connection: HTTPConnection, origins: Sequence[str]) -> None:
    """Raises `ApiError` 403 for a page's connection from elsewhere, where `origins` are listed.

    Programs send no origin, and the service's own pages its own.
    """
    origin = connection.headers.get("origin")
    if origin is None or not origins or "*" in origins or origin in origins:
        return
    with suppress(ValueError):  # not even an address
        if urlsplit(origin).netloc == connection.headers.get("host"):
            return
    message = f"Pages of '{origin}' may not connect."
    raise ApiError(403, message, code="origin_not_allowed")
