"""The HTTP and WebSocket server: uvicorn, with the few behaviours that streaming needs.

A reader that stops reading keeps `send` waiting for ever, and closing its transport politely waits
for the same full buffer. So every scope carries a way to drop its transport:
`scope["extensions"]["partywall.abort"]["abort"]()`. That of a WebSocket also carries a way to send
a text message without waiting, `["partywall.write"]["write"](message: bytes) -> bool`: whether it
was sent, which it is not where the reader is behind or the socket is not open.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from app.settings import Settings

ABORT_EXTENSION = "partywall.abort"
WRITE_EXTENSION = "partywall.write"
_CLOSE_GRACE_SECONDS = 1.0
_CLOSE_SECONDS = 5
_TEXT_FRAME = 0x81
"""A whole message, unmasked (RFC 6455, section 5.2): extensions are not negotiated."""
_MEDIUM_HEADER = Struct("!BBH")
_LONG_HEADER = Struct("!BBQ")

Hook = Callable[[], Awaitable[None]]
Drain = Callable[[asyncio.Event], Awaitable[None]]
"""Ends all work in good order; without waiting for anybody once the event is set."""


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 whose requests can drop their transport."""

    def on_message_begin(self) -> None:
        """Offer the abort extension to the request that begins."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self.transport.abort}}


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets that can drop their transport, and that do so when the peer stops answering."""

    def handle_connect(self, event: Request) -> None:
        """Offer the abort extension; the application's task has not run yet."""
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[ABORT_EXTENSION] = {"abort": self.transport.abort}
            extensions[WRITE_EXTENSION] = {"write": self.write_text}

    def write_text(self, message: bytes) -> bool:
        """Send a text message (UTF-8) as one frame, if that needs no waiting."""
        # It is OPEN from the end of the handshake to the first close frame.
        if self.conn.state is not State.OPEN or not self.writable.is_set() or self.disconnected:
            return False
        length = len(message)
        if length < 126:
            header = bytes((_TEXT_FRAME, length))
        elif length < 65536:
            header = _MEDIUM_HEADER.pack(_TEXT_FRAME, 126, length)
        else:
            header = _LONG_HEADER.pack(_TEXT_FRAME, 127, length)
        self.transport.write(header + message)
        return True

    async def send(self, message: ASGISendEvent) -> None:
        """Send; a refused upgrade is complete, which uvicorn would log as an error."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def keepalive_timeout(self) -> None:
        """Close with 1011, then drop a transport whose buffer does not drain."""
        super().keepalive_timeout()
        self.loop.call_later(_CLOSE_GRACE_SECONDS, self.transport.abort)


class Server(uvicorn.Server):
    """A server that tells when it serves, and ends its streams before its sockets.

    `on_ready` runs once requests are accepted. `drain` runs while they still are, so that whoever
    asks can be told that the service is going down; it must make every stream reach its terminal
    event.
    """

    def __init__(self, config: uvicorn.Config, *, on_ready: Hook, drain: Drain) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._drain = drain
        self._hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then report readiness."""
        await super().startup(sockets)
        await self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, stop listening, close the sockets, and drop those that stay."""
        await self._drain(self._hurry)
        self._loop.call_later(_CLOSE_SECONDS * 0.5, self._abort_connections)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn skips this then, and the application's own tasks go on
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Exit with status 0 on SIGTERM and SIGINT, where uvicorn would raise them once more."""
        handled = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Shut down; asked a second time, without waiting for anybody."""
        if self.should_exit:
            self.force_exit = True
            # A signal handler runs between any two instructions, and wakes no event loop.
            self._loop.call_soon_threadsafe(self._hurry.set)
        self.should_exit = True

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def bind(settings: Settings) -> socket.socket:
    """A bound socket that does not listen yet, so that a taken port is known before a long start.

    Raises `OSError`, which names the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(settings, error) from error
    return listener


def _cannot_listen(settings: Settings, error: OSError) -> OSError:
    return OSError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}")


def service_url(settings: Settings, listener: socket.socket) -> str:
    """The URL at which a client on this machine reaches the service."""
    scheme = "https" if settings.uses_tls else "http"
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    host = local.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


async def run_server(
    app: ASGIApp,
    settings: Settings,
    listener: socket.socket,
    *,
    on_ready: Hook,
    drain: Drain,
) -> None:
    """Serve `app` on `listener` until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        app,
        loop="none",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        # The application refuses what is too large by name; this only bounds what it has to read.
        ws_max_size=2 * settings.max_message_bytes,
        ws_ping_interval=settings.ping_interval_seconds,
        ws_ping_timeout=settings.ping_timeout_seconds,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    await Server(config, on_ready=on_ready, drain=drain).serve(sockets=[listener])
