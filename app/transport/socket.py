"""The life of one accepted WebSocket: what ends it, and that it ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from starlette.websockets import WebSocket

from app.responses.registry import Responses
from app.transport.bounds import Bounds
from app.transport.lanes import Lanes, error_event
from app.transport.messages import take_frame
from app.transport.server_sent_events import abort_transport
from app.transport.socket_writer import Outbox, ReaderFlooded, ReaderLeft
from app.upkeep.connections import Connection
from app.upkeep.draining import Draining, shutting_down
from app.upkeep.workers import Workers
from app.wire.errors import ApiError, invalid_request, unauthorized

_log = logging.getLogger(__name__)
_LAST_WORDS_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class _Parting:
    """How a socket is closed: what it is told, and how long its responses may take to end."""

    code: int
    reason: str
    refusal: ApiError
    """For responses that have not begun."""
    cancels: bool = False
    """Whether the others are cancelled."""
    tells: bool = False
    """Whether the refusal is the socket's last event."""
    patience_seconds: float = _LAST_WORDS_SECONDS


class OpenSocket:
    """One socket, served by one task: nothing else runs for it while it has no responses."""

    def __init__(
        self,
        socket: WebSocket,
        responses: Responses,
        draining: Draining,
        workers: Workers,
        limits: Bounds,
    ) -> None:
        self._socket = socket
        self._responses = responses
        self._draining = draining
        self._workers = workers
        self._limits = limits
        self._outbox = Outbox(
            socket, limits.send_deadline_seconds, limits.inbox_messages, self._stalled
        )
        self._life: asyncio.Timeout | None = None
        self._parting: _Parting | None = None
        self._is_stalled = False

    async def serve(self, connection: Connection) -> None:
        """Serve the socket until the client has left or it is closed."""
        lanes = Lanes(
            self._responses, connection, self._outbox, self._limits, on_idle=self._leave_if_asked
        )

        def leave() -> None:
            lanes.refuse(shutting_down())
            if lanes.idle:
                self._leave_if_asked()

        try:
            with self._draining.socket(leave):
                parting = await self._read(lanes, connection)
                if parting is not None:
                    await self._part(lanes, parting)
        finally:
            await lanes.close()
            await self._outbox.close()

    async def end(self, code: int, reason: str) -> None:
        """Close the socket, after the last words of responses that have been ended already."""
        self._close_with(_Parting(code=code, reason=reason, refusal=unauthorized(reason)))

    async def _read(self, lanes: Lanes, connection: Connection) -> _Parting | None:
        """Take frames as they come, waiting for no stream; returns how the socket is to be closed.

        `None` means that there is nobody to close it for any more.
        """
        try:
            async with asyncio.timeout(self._limits.max_socket_seconds) as self._life:
                while self._parting is None:
                    frame = await self._socket.receive()
                    if frame["type"] == "websocket.disconnect":
                        return None
                    tenant = connection.principal.tenant.id
                    error = await take_frame(
                        frame, lanes, self._workers, tenant, self._limits.max_message_bytes
                    )
                    if error is not None:
                        self._outbox.reply(error)
                        # Frames that came together are taken together: let the replies go first.
                        await asyncio.sleep(0)
        except TimeoutError:
            if self._is_stalled:
                return None
        except ReaderFlooded:
            reason = "this client causes errors faster than it reads them"
            return _Parting(code=1008, reason=reason, refusal=unauthorized(reason))
        finally:
            self._life = None
        return self._parting or _Parting(
            code=1001,
            reason="this socket has reached its greatest age",
            refusal=_too_old(),
            cancels=True,
            tells=True,
            patience_seconds=self._limits.send_deadline_seconds,
        )

    async def _part(self, lanes: Lanes, parting: _Parting) -> None:
        lanes.refuse(parting.refusal)
        if parting.cancels:
            lanes.cancel_all()
        with contextlib.suppress(TimeoutError, ReaderLeft):
            async with asyncio.timeout(parting.patience_seconds):
                await lanes.finished()
                if parting.tells:
                    await self._outbox.send(error_event(parting.refusal))
                await self._outbox.flushed()
        try:
            async with asyncio.timeout(self._limits.send_deadline_seconds):
                await self._socket.close(parting.code, parting.reason)
        except (TimeoutError, RuntimeError):
            abort_transport(self._socket.scope)

    def _leave_if_asked(self) -> None:
        if self._draining.begun:
            self._close_with(
                _Parting(code=1012, reason="the service restarts", refusal=shutting_down())
            )

    def _stalled(self) -> None:
        seconds = self._limits.send_deadline_seconds
        _log.warning("a socket's reader stalled for %s s", seconds)
        abort_transport(self._socket.scope)
        self._is_stalled = True
        self._stop_reading()

    def _close_with(self, parting: _Parting) -> None:
        self._parting = parting
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._life is not None and not self._life.expired():
            self._life.reschedule(asyncio.get_running_loop().time())


def _too_old() -> ApiError:
    message = "This socket has reached its greatest age: open a new one."
    return invalid_request(message, None, "websocket_connection_limit_reached")
