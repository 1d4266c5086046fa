"""Server-sent events with a reader that may stall or leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import cast

from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def until_gone(receive: Receive) -> None:
    """Return when the reader of this request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An ASGI response that sends `events`, each one a whole SSE event.

    A reader that leaves, or takes longer than `send_deadline_seconds` for one event, ends the
    stream and drops the connection. However it ends, `close` is called, even where no event was
    ever asked for: it frees the engine's blocks.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
        send_deadline_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._events = events
        self._close = close
        self._deadline = send_deadline_seconds
        self._headers = [
            *_HEADERS,
            *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end, or to its reader's."""
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not pump.done():
                pump.cancel()
            await asyncio.wait({pump, gone})
            await self._close()
        if pump.cancelled():
            return
        error = pump.exception()
        if isinstance(error, TimeoutError):
            _log.warning("a reader stalled for %s s: its stream is dropped", self._deadline)
            abort_transport(scope)
        elif error is not None:
            raise error

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            async with asyncio.timeout(self._deadline):
                await send(start)
            async for event in events:
                async with asyncio.timeout(self._deadline):
                    body = {"type": "http.response.body", "body": event, "more_body": True}
                    await send(body)
            async with asyncio.timeout(self._deadline):
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def abort_transport(scope: Scope) -> None:
    """Drop the connection without waiting for its reader, where the server offers that."""
    extension = scope.get("extensions", {}).get("partywall.abort")
    if extension is not None:
        cast("Callable[[], None]", extension["abort"])()
