"""Many WebSockets read by one thread as cheaply as Python can: it counts frames, parses no JSON.

What it costs to read must not be what is measured: a client library takes as long for a message as
the service that sends it.
"""

from __future__ import annotations

import base64
import json
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from websockets.frames import Frame, Opcode

from bench.registry import BenchError

_DELTA = b'{"type":"response.output_text.delta"'
_CREATED = b'{"type":"response.created"'
_ENDS = (b'{"type":"response.completed"', b'{"type":"response.incomplete"')
_FAILURES = (b'{"type":"error"', b'{"type":"response.failed"')
_READ_BYTES = 1 << 18
_LOOK_SECONDS = 0.0001


@dataclass
class Streaming:
    """One socket with one answer under way."""

    connection: socket.socket
    response_id: str = ""
    arrivals: list[float] = field(default_factory=list)
    """When each delta had been received (seconds of the monotonic clock)."""
    unseen: list[float] = field(default_factory=list)
    """How long each delta may have lain there, in seconds: nobody had looked for so long."""
    ended: bool = False
    rest: bytes = b""

    def take(self, data: bytes, now: float, unseen: float = 0.0) -> None:
        """Account for received bytes. Raises `BenchError` for an error event or a close frame."""
        data = self.rest + data
        at, end = 0, len(data)
        while at + 2 <= end:
            length, start = data[at + 1], at + 2
            if length == 126:
                if start + 2 > end:
                    break
                (length,) = struct.unpack_from("!H", data, start)
                start += 2
            elif length == 127:
                if start + 8 > end:
                    break
                (length,) = struct.unpack_from("!Q", data, start)
                start += 8
            if start + length > end:
                break
            if data.startswith(_DELTA, start):
                self.arrivals.append(now)
                self.unseen.append(unseen)
            else:
                self._take_other(data[at], data[start : start + length])
            at = start + length
        self.rest = data[at:]

    def _take_other(self, head: int, payload: bytes) -> None:
        if head & 15 == Opcode.PING:
            self.connection.sendall(Frame(Opcode.PONG, payload).serialize(mask=True))
        elif payload.startswith(_CREATED):
            self.response_id = json.loads(payload)["response"]["id"]
        elif payload.startswith(_ENDS):
            self.ended = True
        elif payload.startswith(_FAILURES) or head & 15 != Opcode.TEXT:
            raise BenchError(f"an answer broke off: {payload[:300].decode(errors='replace')}")


def open_socket(url: str, api_key: str) -> socket.socket:
    """A WebSocket of the Responses API. Raises `BenchError` where the upgrade is refused."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    connection = socket.create_connection((host or "", port or 80), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = (
        f"GET /v1/responses HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nAuthorization: Bearer {api_key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(secrets.token_bytes(16)).decode()}\r\n\r\n"
    )
    connection.sendall(request.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        received = connection.recv(4096)
        if not received:
            break
        answer += received
    if b" 101 " not in answer.split(b"\r\n")[0]:
        raise BenchError(f"the upgrade was refused: {answer[:300].decode(errors='replace')}")
    return connection


def stream_all(
    connections: Sequence[socket.socket],
    bodies: Iterable[dict[str, object]],
    timeout_seconds: float,
) -> list[Streaming]:
    """Ask for one answer on each socket, by its body, and read all of them to their ends.

    Raises `BenchError` for an answer that breaks off, or if they take longer than the timeout.
    """
    deadline = time.monotonic() + timeout_seconds
    streams = [Streaming(connection) for connection in connections]
    with selectors.DefaultSelector() as ready:
        for stream, body in zip(streams, bodies, strict=True):
            message = json.dumps({"type": "response.create"} | body).encode()
            stream.connection.sendall(Frame(Opcode.TEXT, message).serialize(mask=True))
            ready.register(stream.connection, selectors.EVENT_READ, stream)
        looked = time.monotonic()
        while ready.get_map():
            before, looked = looked, time.monotonic()
            if looked > deadline:
                raise BenchError(f"answers took longer than {timeout_seconds:.0f} s")
            found = ready.select(0)
            if not found:
                # Not waiting in `select`: each write of the service would have to wake this core
                # up, which that of a client on another machine never does. Nor going round all the
                # time: whoever uses up his share of a core is late when it matters.
                time.sleep(_LOOK_SECONDS)
            for key, _ in found:
                data = key.data.connection.recv(_READ_BYTES)
                if not data:
                    raise BenchError("the service closed a socket in the middle of an answer")
                now = time.monotonic()
                key.data.take(data, now, now - before)
                if key.data.ended:
                    ready.unregister(key.data.connection)
    return streams
