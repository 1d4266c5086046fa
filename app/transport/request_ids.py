"""An id for every request and socket: in its answer's headers, and in whatever is logged for it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observe.log_lines import log_answer, log_socket
from app.observe.request_fields import CLIENT_ID_HEADERS, RequestContext, begin_request

HEADER = "x-request-id"
CLIENT_HEADER = CLIENT_ID_HEADERS[0]
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


class RequestIds:
    """Plain ASGI middleware: an `x-request-id` on every HTTP response and handshake, and a line in
    the log at the end of each.

    Tasks that serve the request inherit it for what they log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything through; add the header to the start of an answer."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        context = begin_request(scope)
        seen = _Seen(context, send)
        try:
            await self._app(scope, receive, seen.send)
        finally:
            seen.log()


class _Seen:
    """How a request is answered, or a socket closed, as it passes through."""

    def __init__(self, context: RequestContext, send: Send) -> None:
        self._context = context
        self._send = send
        self._status: int | None = None
        self._is_socket = False

    async def send(self, message: Message) -> None:
        """Send, the start of an answer with the ids."""
        if message["type"] in _STARTS:
            headers = MutableHeaders(scope=message)
            headers[HEADER] = self._context.id
            if self._context.client_id is not None:
                headers[CLIENT_HEADER] = self._context.client_id
            self._status = message.get("status")
            self._is_socket = message["type"] == "websocket.accept"
        elif message["type"] == "websocket.close":
            self._context.close_code = message["code"]
        await self._send(message)

    def log(self) -> None:
        """It is over."""
        if self._is_socket:
            log_socket(self._context)
        elif not self._context.num_generations:
            log_answer(self._context, self._status)
