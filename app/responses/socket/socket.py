"""The life of one accepted WebSocket: its frames are taken, and it ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.websockets import WebSocket

from app.limits.connections import Connection
from app.limits.draining import Draining
from app.observe.request_fields import current_request
from app.responses.registry import Responses
from app.responses.socket.lanes import Lanes, error_event
from app.responses.socket.writer import ReaderFlooded, ReaderLeft, SocketWriter
from app.transport.bodies import Intake
from app.transport.bounds import INLINE_BYTES, Bounds
from app.transport.server_sent_events import abort_transport
from app.wire.errors import ApiError, invalid_request, shutting_down, unauthorized
from app.wire.responses import CancelMessage, CreateMessage, RefusedMessage, socket_message
from app.workers import Workers
from tenants.records import Tenant

_log = logging.getLogger(__name__)
_LAST_WORDS_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class _Closing:
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
        intake: Intake,
        bounds: Bounds,
    ) -> None:
        self._socket = socket
        self._responses = responses
        self._draining = draining
        self._workers = workers
        self._intake = intake
        self._bounds = bounds
        self._writer = SocketWriter(
            socket, bounds.send_deadline_seconds, bounds.inbox_messages, self._stalled
        )
        self._life: asyncio.Timeout | None = None
        self._closing: _Closing | None = None
        self._is_stalled = False

    async def serve(self, connection: Connection) -> None:
        """Serve the socket until the client has left or it is closed."""
        lanes = Lanes(
            self._responses,
            connection,
            self._writer,
            self._bounds,
            self._intake.body(connection.principal.tenant.id),
            on_idle=self._leave_if_asked,
        )

        def leave() -> None:
            lanes.refuse(shutting_down())
            if lanes.idle:
                self._leave_if_asked()

        try:
            with self._draining.socket(leave):
                closing = await self._read(lanes, connection)
                if closing is not None:
                    await self._close(lanes, closing)
        finally:
            await lanes.close()
            await self._writer.close()

    async def end(self, code: int, reason: str) -> None:
        """Close the socket, after the last words of responses that have been ended already."""
        self._close_with(_Closing(code=code, reason=reason, refusal=unauthorized(reason)))

    async def _read(self, lanes: Lanes, connection: Connection) -> _Closing | None:
        """Take frames as they come, waiting for no stream; returns how the socket is to be closed.

        `None` means that there is nobody to close it for any more.
        """
        try:
            async with asyncio.timeout(self._bounds.max_socket_seconds) as self._life:
                while self._closing is None:
                    frame = await self._socket.receive()
                    if frame["type"] == "websocket.disconnect":
                        if (context := current_request()) is not None:
                            context.close_code = frame["code"]
                        return None
                    try:
                        await self._take(frame, lanes, connection.principal.tenant)
                    except RefusedMessage as refused:
                        if (context := current_request()) is not None:
                            context.num_refused += 1
                        if refused.previous is not None:
                            lanes.history.evict(refused.previous)
                        self._writer.reply(error_event(refused.error, refused.stream_id))
                        # Frames that came together are taken together: let the replies go first.
                        await asyncio.sleep(0)
        except TimeoutError:
            if self._is_stalled:
                return None
        except ReaderFlooded:
            reason = "this client causes errors faster than it reads them"
            return _Closing(code=1008, reason=reason, refusal=unauthorized(reason))
        finally:
            self._life = None
        return self._closing or _Closing(
            code=1001,
            reason="this socket has reached its greatest age",
            refusal=_too_old(),
            cancels=True,
            tells=True,
            patience_seconds=self._bounds.send_deadline_seconds,
        )

    async def _take(self, frame: Any, lanes: Lanes, tenant: Tenant) -> None:
        """Do what an ASGI `websocket.receive` message asks. Raises `RefusedMessage`.

        It waits for no response: what comes of it, the lanes will send.
        """
        data = _data(frame, self._bounds.max_message_bytes)
        parse = partial(socket_message, ignores_unknown=self._bounds.ignores_unknown(tenant))
        if len(data) <= INLINE_BYTES:
            message = parse(data)
        else:
            message = await self._workers.run(tenant.id, partial(parse, data))
        try:
            if isinstance(message, CancelMessage):
                lanes.cancel(message.response_id, message.stream_id)
            else:
                lanes.submit(message, len(data))
        except ApiError as error:
            previous = message.previous_response_id if isinstance(message, CreateMessage) else None
            raise RefusedMessage(error, message.stream_id, previous) from error

    async def _close(self, lanes: Lanes, closing: _Closing) -> None:
        lanes.refuse(closing.refusal)
        if closing.cancels:
            lanes.cancel_all()
        with contextlib.suppress(TimeoutError, ReaderLeft):
            async with asyncio.timeout(closing.patience_seconds):
                await lanes.finished()
                if closing.tells:
                    await self._writer.send(error_event(closing.refusal))
                await self._writer.flushed()
        try:
            async with asyncio.timeout(self._bounds.send_deadline_seconds):
                await self._socket.close(closing.code, closing.reason)
        except (TimeoutError, RuntimeError):
            abort_transport(self._socket.scope)

    def _leave_if_asked(self) -> None:
        if self._draining.begun:
            self._close_with(
                _Closing(code=1012, reason="the service restarts", refusal=shutting_down())
            )

    def _stalled(self) -> None:
        seconds = self._bounds.send_deadline_seconds
        _log.warning("a socket's reader stalled for %s s", seconds)
        abort_transport(self._socket.scope)
        self._is_stalled = True
        self._stop_reading()

    def _close_with(self, closing: _Closing) -> None:
        self._closing = closing
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._life is not None and not self._life.expired():
            self._life.reschedule(asyncio.get_running_loop().time())


def _data(frame: Any, max_bytes: int) -> bytes:
    """The text of a frame. Raises `RefusedMessage`."""
    text = frame.get("text")
    if text is None:
        message = "Send text frames: binary ones carry nothing here."
        raise RefusedMessage(invalid_request(message, None, "invalid_type"))
    data = bytes(text.encode())
    if len(data) > max_bytes:
        message = f"A message holds {max_bytes} bytes."
        raise RefusedMessage(invalid_request(message, None, "message_too_large"))
    return data


def _too_old() -> ApiError:
    message = "This socket has reached its greatest age: open a new one."
    return invalid_request(message, None, "websocket_connection_limit_reached")
