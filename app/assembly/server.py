"""The server: uvicorn's, with acceptors and protocols of its own, and an end in good order."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from app.settings import Settings
from app.signals import on_signals
from app.transport.accepting import Acceptor
from app.transport.bounds import ConnectionBounds, Place, Places
from app.transport.http_protocol import HttpProtocol
from app.transport.websocket_protocol import WebSocketProtocol

_CLOSE_SECONDS = 5
_PART_SECONDS = 1.0
_REMEDIES = {
    errno.EADDRINUSE: "choose another port, or stop what listens there ('ss -ltnp' names it)",
    errno.EACCES: "choose a port from 1024 on, or give the service CAP_NET_BIND_SERVICE",
}

Hook = Callable[[], Awaitable[None]]
Drain = Callable[[asyncio.Event], Awaitable[None]]
"""Ends all work in good order; without waiting for anybody once the event is set."""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A bound socket, and what is served there; strangers are told apart by `bounds`."""

    socket: socket.socket
    app: ASGIApp
    bounds: ConnectionBounds


class Server(uvicorn.Server):
    """Serves until SIGTERM or SIGINT, tells when it does, and ends its streams before its sockets.

    The first listener's application has a lifespan. `on_ready` runs once requests are accepted.
    `drain` runs while they still are, so that whoever asks can be told that the service is going
    down; it must make every stream reach its terminal event.
    """

    def __init__(
        self, listeners: Sequence[Listener], settings: Settings, *, on_ready: Hook, drain: Drain
    ) -> None:
        configs = [
            _config(listener.app, settings, number == 0)
            for number, listener in enumerate(listeners)
        ]
        super().__init__(configs[0])
        self._acceptors = [
            self._acceptor(listener, config)
            for listener, config in zip(listeners, configs, strict=True)
        ]
        self._on_ready = on_ready
        self._drain = drain
        self._hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listen, then report readiness."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        self.servers = []
        for acceptor in self._acceptors:
            acceptor.open()
        self.started = True
        try:
            await self._on_ready()
        except Exception:
            await self.lifespan.shutdown()  # else its task ends with the loop, in a traceback
            raise

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, stop listening, close the sockets, and drop those that stay."""
        await self._drain(self._hurry)
        for acceptor in self._acceptors:
            await acceptor.close()
        self._loop.call_later(_CLOSE_SECONDS * 0.5, self._abort_connections)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn waits for nothing then, and the application's tasks go on
            await self._part()
            await self.lifespan.shutdown()

    async def _part(self) -> None:
        """Let requests whose client is not done end by its leaving, not by the event loop's end."""
        self._abort_connections()
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=_PART_SECONDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Exit with status 0 on SIGTERM and SIGINT, where uvicorn would raise them once more."""
        with on_signals(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Shut down; asked a second time, without waiting for anybody."""
        if self.should_exit:
            self.force_exit = True
            # A signal handler runs between any two instructions, and wakes no event loop.
            self._loop.call_soon_threadsafe(self._hurry.set)
        self.should_exit = True

    def _acceptor(self, listener: Listener, config: uvicorn.Config) -> Acceptor:
        config.load()
        bounds = listener.bounds

        def make_protocol(place: Place) -> HttpProtocol:
            # The state of a lifespan; other applications have none.
            state = self.lifespan.state if config is self.config else {}
            return HttpProtocol(config, self.server_state, state, bounds=bounds, place=place)

        return Acceptor(
            listener.socket,
            Places(bounds),
            make_protocol,
            config.ssl,
            bounds.header_deadline_seconds,
        )

    def _abort_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class CannotListen(OSError):
    """An address that cannot be had: why not, and what to do about it."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        self.what = f"cannot listen on {host} port {port}: {error.strerror}"
        self.remedy = _REMEDIES.get(error.errno or 0, "name an address of this machine")
        super().__init__(f"{self.what}; {self.remedy}")


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that a taken port is known before a long start.

    Raises `CannotListen`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListen(host, port, error) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise CannotListen(host, port, error) from error
    return listener


def local_url(host: str, listener: socket.socket, uses_tls: bool) -> str:
    """The URL at which a client on this machine reaches what was bound to `host`."""
    scheme = "https" if uses_tls else "http"
    return f"{scheme}://{url_host(host)}:{listener.getsockname()[1]}"


def url_host(host: str) -> str:
    """The part of a URL for a client on this machine of what was bound to `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _config(app: ASGIApp, settings: Settings, is_first: bool) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        # The application refuses what is too large by name; this only bounds what it has to read.
        ws_max_size=2 * settings.max_message_bytes,
        ws_ping_interval=settings.ping_interval_seconds,
        ws_ping_timeout=settings.ping_timeout_seconds,
        ws_per_message_deflate=False,
        lifespan="on" if is_first else "off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
