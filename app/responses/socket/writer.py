"""What a socket is sent: one message at a time, with a deadline for a reader that stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.websockets import WebSocket, WebSocketDisconnect


class ReaderLeft(Exception):
    """The socket is closed, or its reader took longer than the send deadline."""


class ReaderFlooded(Exception):
    """The client keeps causing errors and does not read them."""


class SocketWriter:
    """Sends to one socket; nothing runs and nothing is queued here while nobody sends.

    Streams wait in `send` for their turn and for the reader, in the order in which they came.
    `reply` never waits. A reader that takes nothing for `deadline_seconds` has `stalled` called.
    """

    def __init__(
        self,
        socket: WebSocket,
        deadline_seconds: float,
        max_replies: int,
        stalled: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._deadline_seconds = deadline_seconds
        self._max_replies = max_replies
        self._stalled = stalled
        self._turn = asyncio.Lock()
        self._replies: list[bytes] = []  # an empty deque weighs ten times as much
        self._replying: asyncio.Task[None] | None = None
        self._gone = False
        extension = socket.scope.get("extensions", {}).get("partywall.write")
        self._write: Callable[[bytes], bool] = _never if extension is None else extension["write"]

    def offer(self, event: bytes) -> bool:
        """Send an event if nobody waits and the reader keeps up; whether it was sent."""
        return not self._gone and not self._turn.locked() and self._write(event)

    async def send(self, event: bytes) -> None:
        """Send an event. Raises `ReaderLeft`."""
        async with self._turn:
            await self._send(event)

    def reply(self, event: bytes) -> None:
        """Send an event as soon as possible. Raises `ReaderFlooded` when too many are unread."""
        if len(self._replies) >= self._max_replies:
            raise ReaderFlooded
        self._replies.append(event)
        if self._replying is None:
            self._replying = asyncio.create_task(self._send_replies())

    async def flushed(self) -> None:
        """Wait until every reply has been sent, or cannot be any more."""
        if self._replying is not None:
            await asyncio.wait({self._replying})

    async def close(self) -> None:
        """Send nothing more."""
        self._gone = True
        if self._replying is not None:
            self._replying.cancel()
            await asyncio.wait({self._replying})

    async def _send_replies(self) -> None:
        try:
            async with self._turn:
                while self._replies:
                    await self._send(self._replies[0])
                    self._replies.pop(0)
        except ReaderLeft:
            pass
        finally:
            self._replying = None

    async def _send(self, event: bytes) -> None:
        if self._gone:
            raise ReaderLeft
        try:
            async with asyncio.timeout(self._deadline_seconds):
                await self._socket.send({"type": "websocket.send", "text": event.decode()})
        except TimeoutError:
            self._gone = True
            self._stalled()
            raise ReaderLeft from None
        except (WebSocketDisconnect, RuntimeError):
            # Starlette says RuntimeError for a send after the close message.
            self._gone = True
            raise ReaderLeft from None


def _never(_: bytes) -> bool:
    """Of a server that writes only while one waits."""
    return False
