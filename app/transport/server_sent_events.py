"""Server-sent events with a reader that may stall or leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import cast

from starlette.types import Receive, Scope, Send

from app.transport.bounds import Bounds
from app.transport.half_closed import probe_with

_log = logging.getLogger(__name__)
_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_COMMENT = b": queued\n\n"
SSE_DONE = b"data: [DONE]\n\n"
"""What both APIs end a stream with."""


async def until_gone(receive: Receive) -> None:
    """Return when the reader of this request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def sse_event(data: bytes, kind: bytes | None = None) -> bytes:
    """One event with one line of data, as JSON is, and the name of its kind."""
    return b"data: %b\n\n" % data if kind is None else b"event: %b\ndata: %b\n\n" % (kind, data)


class EventStream:
    """An ASGI response that sends `events`, each one a whole SSE event.

    A reader that leaves, or takes longer than the send deadline for one event, ends the stream and
    drops the connection. While there is no event, as before the first token of a request that is
    queued, comments keep proxies from taking the connection for dead. However it ends, `close` is
    called, even where no event was ever asked for: it frees the engine's blocks.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
        bounds: Bounds,
        headers: Mapping[str, str] | None = None,
        *,
        media_type: str = "text/event-stream; charset=utf-8",
        comment: bytes = _COMMENT,
    ) -> None:
        """`comment` is what readers of this media type take for nothing at all."""
        self._events = events
        self._close = close
        self._deadline = bounds.send_deadline_seconds
        self._keep_alive_seconds = bounds.keep_alive_seconds
        self._turn = asyncio.Lock()
        self._has_sent = False
        self._ended = False
        self._is_probed = asyncio.Event()
        self._comment = comment
        self._headers = [
            (b"content-type", media_type.encode()),
            *_HEADERS,
            *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end, or to its reader's."""
        probe_with(scope, self._is_probed.set)
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(until_gone(receive))
        comments = asyncio.create_task(self._keep_alive(send))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            comments.cancel()
            if not pump.done():
                pump.cancel()
            await asyncio.wait({pump, gone, comments})
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
            async with asyncio.timeout(self._deadline), self._turn:
                await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            async for event in events:
                await self._send(send, event)
            await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Send a part of the body once its turn comes. Raises `TimeoutError`."""
        async with asyncio.timeout(self._deadline), self._turn:
            if self._ended:
                return
            self._has_sent, self._ended = True, not more
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _keep_alive(self, send: Send) -> None:
        """Send a comment whenever nothing else was sent for a while, or the reader is probed."""
        while True:
            self._has_sent = False
            self._is_probed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._keep_alive_seconds):
                    await self._is_probed.wait()
            if self._is_probed.is_set() or not self._has_sent:
                with contextlib.suppress(TimeoutError):  # the next event will find it out as well
                    await self._send(send, self._comment)


def abort_transport(scope: Scope) -> None:
    """Drop the connection without waiting for its reader, where the server offers that."""
    extension = scope.get("extensions", {}).get("partywall.abort")
    if extension is not None:
        cast("Callable[[], None]", extension["abort"])()
