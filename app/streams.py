"""What a socket is sent: a bounded outbox, one sender, and a deadline for a stalled reader."""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.websockets import WebSocket, WebSocketDisconnect


class ReaderStalled(Exception):
    """The reader took longer than the send deadline for one event."""


class ReaderFlooded(Exception):
    """The client keeps causing errors and does not read them."""


class Outbox:
    """Events on their way to one socket.

    Streams wait in `put` while the outbox is full, which stops them from asking the engine's client
    for more. `put_now` is for replies of the reader, which must never wait: they go ahead of the
    streams, in a queue with a bound of its own.
    """

    def __init__(self, max_events: int, max_replies: int) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue(max_events)
        self._replies: deque[bytes] = deque()
        self._max_replies = max_replies
        self._ready = asyncio.Event()

    async def put(self, event: bytes) -> None:
        """Add a stream's event, after waiting for room."""
        await self._events.put(event)
        self._ready.set()

    def put_now(self, reply: bytes) -> None:
        """Add a reply at once. Raises `ReaderFlooded` when too many are unread."""
        if len(self._replies) >= self._max_replies:
            raise ReaderFlooded
        self._replies.append(reply)
        self._ready.set()

    async def flushed(self) -> None:
        """Wait until every event that was put has been sent."""
        await self._events.join()

    async def send_all(self, socket: WebSocket, deadline_seconds: float) -> None:
        """Send until cancelled.

        Returns when the socket has closed; raises `ReaderStalled` past the deadline.
        """
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._replies or not self._events.empty():
                reply = bool(self._replies)
                event = self._replies.popleft() if reply else self._events.get_nowait()
                try:
                    async with asyncio.timeout(deadline_seconds):
                        await socket.send({"type": "websocket.send", "text": event.decode()})
                except TimeoutError:
                    raise ReaderStalled from None
                except (WebSocketDisconnect, RuntimeError):
                    # Starlette says RuntimeError for a send after the close message.
                    return
                if not reply:
                    self._events.task_done()
