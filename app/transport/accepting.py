"""Accepting connections, as many as there are places for, and TLS handshakes in bounded time.

A place is taken before a byte has been read or a handshake begun, so that the bounds hold for
those as well: asyncio's own servers know of a connection only once its handshake is done.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable

from app.transport.bounds import Place, Places

_log = logging.getLogger(__name__)
_BACKLOG = 2048
_PAUSE_SECONDS = 0.5
_COMPLAINT_SECONDS = 10.0
_OTHER_FILES = 256
"""The store's connections, pipes to the engine, libraries, listeners."""
_GONE = (errno.ECONNABORTED, errno.ENETDOWN, errno.EPROTO, errno.EHOSTDOWN, errno.ENETUNREACH)

MakeProtocol = Callable[[Place], asyncio.Protocol]


class Acceptor:
    """Accepts what comes to one bound socket."""

    def __init__(
        self,
        listener: socket.socket,
        places: Places,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        self._listener = listener
        self._places = places
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshake_seconds = None if tls is None else handshake_seconds
        self._accepting: asyncio.Task[None] | None = None
        self._greetings: set[asyncio.Task[None]] = set()
        self._complained = -_COMPLAINT_SECONDS

    def open(self) -> None:
        """Listen."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Listen no more; connections stay, but for those in the middle of a TLS handshake."""
        tasks = {*self._greetings} | ({self._accepting} if self._accepting else set())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno not in _GONE:  # no file descriptor or memory is left
                    self._complain(f"no connection can be accepted: {error.strerror}")
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            place = self._places.take(address[0])
            if place is None:
                connection.close()
                self._complain(
                    f"a connection from {address[0]} was refused: {self._places.taken} are open"
                )
                continue
            greeting = asyncio.create_task(self._greet(connection, place))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, connection: socket.socket, place: Place) -> None:
        connected = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make_protocol(place),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_seconds,
            )
            connected = True
        except OSError:
            pass  # the TLS handshake failed, or took too long
        finally:
            if not connected:
                place.leave()
                connection.close()

    def _complain(self, what: str) -> None:
        """Log, now and then: strangers must not fill the log."""
        now = time.monotonic()
        if now - self._complained >= _COMPLAINT_SECONDS:
            self._complained = now
            _log.warning("%s", what)


def allow_files(connections: int) -> None:
    """Let this process open a file for each connection, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        _log.warning("%d connections were allowed, but only %d open files are", connections, hard)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
