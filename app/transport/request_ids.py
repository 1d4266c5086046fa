"""An id for every request and socket: in its answer's headers, and in whatever is logged for it.

Ids are made here, never taken from a client, who could otherwise write into the log under another
request's id.
"""

from __future__ import annotations

import logging
import uuid
from contextvars import ContextVar
from typing import TextIO

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class RequestIds:
    """Plain ASGI middleware: an `x-request-id` on every HTTP response and handshake.

    Tasks that serve the request inherit it for what they log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything through; add the header to the start of an answer."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = f"req_{uuid.uuid4().hex}"
        _request_id.set(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] in _STARTS:
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class _RequestIdFilter(logging.Filter):
    """Gives every record a `request`: its id in brackets, or nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        request_id = _request_id.get()
        record.request = "" if request_id is None else f" [{request_id}]"
        return True


def log_to(stream: TextIO) -> None:
    """Log warnings and worse, with the id of the request that they belong to."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(_RequestIdFilter())
    form = "%(levelname)s %(name)s%(request)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler])
