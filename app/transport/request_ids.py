"""An id for every request and socket: in its answer's headers, and in whatever is logged for it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observe.log_lines import log_answer, log_socket
from app.observe.request_fields import CLIENT_ID_HEADERS, begin_request

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
        context, status, is_socket = begin_request(scope), None, False

        async def send_named(message: Message) -> None:
            nonlocal status, is_socket
            if message["type"] in _STARTS:
                headers = MutableHeaders(scope=message)
                headers[HEADER] = context.id
                if context.client_id is not None:
                    headers[CLIENT_HEADER] = context.client_id
                status = message.get("status")
                is_socket = message["type"] == "websocket.accept"
            elif message["type"] == "websocket.close":
                context.close_code = message["code"]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            if is_socket:
                log_socket(context)
            elif not context.num_generations:
                log_answer(context, status)
