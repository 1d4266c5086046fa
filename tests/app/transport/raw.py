"""Bytes as a stranger sends them, and an application that reads whole bodies."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from socket import SO_RCVBUF, SOL_SOCKET

import psutil
from starlette.types import Receive, Scope, Send

from tests.app.transport.test_server import Probe

PATIENCE_SECONDS = 10.0
_LARGE_BYTES = 16_000_000
"""More than a system keeps for who sends it, and for who does not take it."""


class Reader(Probe):
    """Answers a request with its method and its body, and a WebSocket with an accept."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.headers: list[tuple[bytes, bytes]] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        self.headers = scope.get("headers", [])
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.bodies.put_nowait(None)
                return
            body += message["body"]
            more = message["more_body"]
        self.bodies.put_nowait(body)
        await self.hold.wait()
        answer = scope["method"].encode() + b" " + body
        if scope["path"] == "/large":
            answer = bytes(_LARGE_BYTES)
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Stranger:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, *pieces: bytes) -> None:
        """Send, if it can be sent."""
        self._writer.write(b"".join(pieces))

    async def status(self) -> int:
        """The status of the next answer; its body is read where its length is given."""
        return int((await self.answer()).split(b" ")[1])

    async def answer(self) -> bytes:
        """The next answer, whose length is given."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self._reader.readuntil(b"\r\n\r\n")
            lengths = [
                int(line.partition(b":")[2])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            ]
            length = sum(lengths)
            return head + await self._reader.readexactly(length)

    async def drained(self) -> None:
        """Wait until what was sent has left, or the peer does not take it."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.1):
                await self._writer.drain()

    async def rest(self) -> bytes:
        """All that comes until the connection ends, which it must."""
        received = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while piece := await self._reader.read(65536):
                    received += piece
        return received

    def stop_reading(self) -> None:
        """Leave what comes where it is, of which the system keeps little."""
        socket = self._writer.get_extra_info("socket")
        socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 65536)  # or it may keep some ten megabytes
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Leave."""
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def stranger(url: str, source: str = "127.0.0.1") -> AsyncIterator[Stranger]:
    """Connect from `source`."""
    host, port = url.removeprefix("http://").split(":")
    found = Stranger(
        *await asyncio.open_connection(host, int(port), local_addr=(source, 0), limit=2**20)
    )
    try:
        yield found
    finally:
        found.close()


async def until_a_place_is_free(url: str) -> None:
    """Return once the service, which has one place, serves somebody else."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with stranger(url) as next_one:
                next_one.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if (await next_one.rest()).startswith(b"HTTP/1.1 200"):
                    return
            await asyncio.sleep(0.05)


HANDSHAKE = (
    b"GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """A client's frame, whose mask changes nothing."""
    assert len(payload) < 65536
    first = (0x80 if fin else 0) | opcode
    if len(payload) < 126:
        return bytes((first, 0x80 | len(payload))) + bytes(4) + payload
    return struct.pack("!BBH", first, 0x80 | 126, len(payload)) + bytes(4) + payload


def resident_bytes() -> int:
    """The memory of this process."""
    return int(psutil.Process().memory_info().rss)
