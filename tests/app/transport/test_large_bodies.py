"""A body that may be large, and slow, as long as it comes; and the next one, which may not."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.transport.large_bodies import large_body
from app.wire.errors import ApiError
from tests.app.transport.raw import POST, Reader, stranger
from tests.app.transport.test_server import running, settings


class Taker(Reader):
    """Answers with the length of what it was sent, where the path is `/large`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        if scope.get("path") != "/large":
            await super().__call__(scope, receive, send)
            return
        size = 0
        try:
            async for piece in large_body(Request(scope, receive)):
                size += len(piece)
        except ApiError as error:
            self.bodies.put_nowait(error.message.encode())
        answer = Response(str(size))
        await answer(scope, receive, send)


LARGE = POST.replace(b"POST /", b"POST /large")
SLOW = settings(body_deadline_seconds=0.3, max_message_bytes=10_000)


async def test_a_large_body_that_drips_is_taken_and_the_next_one_is_bounded_again() -> None:
    async with running(Taker(), SLOW) as url, stranger(url) as peer:
        peer.send(LARGE, b"Content-Length: 200000\r\n\r\n")
        for _ in range(10):
            peer.send(bytes(20_000))
            await asyncio.sleep(0.1)
        assert (await peer.answer()).endswith(b"200000")
        peer.send(POST, b"Content-Length: 1000\r\n\r\nsome")
        assert await peer.status() == 408
    async with running(Taker(), SLOW) as url, stranger(url) as peer:
        peer.send(POST, b"Content-Length: 200000\r\n\r\n", bytes(200_000))
        assert await peer.status() == 413


async def test_a_large_body_that_ends_early_is_no_whole_one() -> None:
    taker = Taker()
    async with running(taker, SLOW) as url, stranger(url) as peer:
        peer.send(LARGE, b"Content-Length: 200000\r\n\r\n", bytes(20_000))
        await asyncio.sleep(0.1)
        peer.close()
        async with asyncio.timeout(10):
            assert await taker.bodies.get() == b"The body has not come as a whole."
