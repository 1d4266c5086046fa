"""WebSockets as uvicorn speaks them, for peers that send anything, and read or do not read.

The scope carries a way to drop the transport, as that of HTTP does, and a way to send a text
message without waiting, `["partywall.write"]["write"](message: bytes) -> bool`: whether it was
sent, which it is not where the reader is behind or the socket is not open. Before it accepts, the
application says with `["partywall.incoming"]["count"](account: Account)` where the bytes of its
messages count, as they come and until it asks for the next message.

One read may bring tens of thousands of frames. They are parsed a few at a time, others run in
between, and none while messages wait for the application: nothing more is read until then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import Any, Protocol

import uvicorn
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import State

from app.transport.bounds import INLINE_BYTES, Place
from app.wire.errors import ApiError

_HOP_BY_HOP = (b"connection", b"upgrade", b"http2-settings")
ABORT_EXTENSION = "partywall.abort"
WRITE_EXTENSION = "partywall.write"
INCOMING_EXTENSION = "partywall.incoming"
_CLOSE_GRACE_SECONDS = 1.0
_PIECE_BYTES = 256
"""What is parsed at once: 42 frames at most."""
_LONG_PIECE_BYTES = 4096
"""The same within a frame that is longer."""
_TURN_SECONDS = 0.0005
"""How long pieces are parsed before others run."""
_MAX_FRAGMENTS = 1024
_TEXT_FRAME = 0x81
"""A whole message, unmasked (RFC 6455, section 5.2): extensions are not negotiated."""
_MEDIUM_HEADER = Struct("!BBH")
_LONG_HEADER = Struct("!BBQ")
_HANDSHAKE_HEADERS = (b"connection", b"upgrade", b"origin")
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Account(Protocol):
    """Where a connection's incoming bytes are counted."""

    def hold(self, num_bytes: int) -> None:
        """Now it is so many. Raises `ApiError` where there is no room for more."""
        ...


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket. However it ends, its transport is dropped soon afterwards."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        place: Place | None,
        message_deadline_seconds: float,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._place = place
        self._message_deadline = message_deadline_seconds
        self._account: Account | None = None
        self._unparsed = memoryview(b"")
        """What one read has brought and waits for its turn; the transport is paused meanwhile."""
        self._is_held = False
        self._turn: asyncio.Handle | None = None
        self._queued: deque[int] = deque()
        """The lengths of the messages that wait for the application."""
        self._in_hand = 0
        """The length of the message that it took last."""
        self._overdue: asyncio.TimerHandle | None = None
        self._request_headers: list[tuple[bytes, bytes]] = []
        self._latest_pong = b""
        self._drop: asyncio.TimerHandle | None = None

    def open(self, url: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer a handshake, whose head has been parsed already.

        The library below gets what the handshake depends on: its own bounds are for servers that
        parse with it, and shorter than a cookie may be.
        """
        self._request_headers = headers
        needed = [
            b"%s: %s\r\n" % (name, value)
            for name, value in headers
            if name in _HANDSHAKE_HEADERS or name.startswith(b"sec-websocket-")
        ]
        head = b"".join([b"GET ", url, b" HTTP/1.1\r\n", *needed, b"\r\n"])
        if head.isascii():
            super().data_received(head)
        if not self.handshake_initiated:
            self.handshake_complete = self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()) or _BAD_REQUEST)
            self.transport.close()
            self._drop_soon(_CLOSE_GRACE_SECONDS)

    def handle_connect(self, event: Request) -> None:
        """Offer the extensions; the application's task has not run yet."""
        super().handle_connect(event)
        if self.close_sent:
            self._drop_soon(_CLOSE_GRACE_SECONDS)
            return
        self.scope["headers"] = self._request_headers
        extensions: dict[str, Any] = self.scope["extensions"]
        extensions[ABORT_EXTENSION] = {"abort": self.transport.abort}
        extensions[WRITE_EXTENSION] = {"write": self.write_text}
        extensions[INCOMING_EXTENSION] = {"count": self.count_in}
        # No frame is looked at before the application has accepted the handshake.
        self.read_paused = True
        self.transport.pause_reading()

    def write_text(self, message: bytes) -> bool:
        """Send a text message (UTF-8) as one frame, if that needs no waiting."""
        # It is OPEN from the end of the handshake to the first close frame.
        if self.conn.state is not State.OPEN or not self.writable.is_set() or self.disconnected:
            return False
        length = len(message)
        if length < 126:
            header = bytes((_TEXT_FRAME, length))
        elif length < 65536:
            header = _MEDIUM_HEADER.pack(_TEXT_FRAME, 126, length)
        else:
            header = _LONG_HEADER.pack(_TEXT_FRAME, 127, length)
        self.transport.write(header + message)
        return True

    def count_in(self, account: Account) -> None:
        """From now on incoming bytes count there, until the connection and its task have ended."""
        self._account = account

    def data_received(self, data: bytes) -> None:
        """Take what has come, if there is room for it."""
        # A transport may deliver once more after it has been paused.
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        if self._turn is None:
            self._parse()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; the one before it is done with."""
        self._in_hand = 0
        self._count()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._in_hand = self._queued.popleft()
        self._go_on()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send; a refused upgrade is complete, which uvicorn would log as an error."""
        await super().send(message)
        kind = message["type"]
        if kind == "websocket.accept" and self._place is not None:
            self._place.vouch()
        elif kind == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True
        elif kind == "websocket.close":
            self._go_on()

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message, whose bytes are bounded elsewhere."""
        if len(self.frames) >= _MAX_FRAGMENTS:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a message over, unless it is a text that is none."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            data = b"".join(self.frames)
            try:
                data.decode()
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "a text message is UTF-8")
                return
            self.frames = [data]
        if not self.close_sent:
            self._queued.append(sum(map(len, self.frames)))
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Answer; for a peer that does not read, keep the answer to its latest ping only."""
        pongs = self.conn.data_to_send()
        if self.writable.is_set():
            self.transport.write(b"".join(pongs))
        elif pongs:
            self._latest_pong = pongs[-1]

    def resume_writing(self) -> None:
        """The peer has read what it was sent."""
        super().resume_writing()
        if self._latest_pong and self.conn.state is State.OPEN:
            self.transport.write(self._latest_pong)
        self._latest_pong = b""

    def keepalive_timeout(self) -> None:
        """Close with 1011, then drop a transport whose buffer does not drain."""
        super().keepalive_timeout()
        self._drop_soon(_CLOSE_GRACE_SECONDS)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application is done: the peer has a while to read the rest and to close."""
        super().on_task_complete(task)
        self._in_hand = 0
        self._queued.clear()
        self._count()
        self._drop_soon(self.close_timeout + _CLOSE_GRACE_SECONDS)

    def shutdown(self) -> None:
        """Close with 1012, or drop what is closing already."""
        if self.handshake_complete and self.conn.state is not State.OPEN:
            self.transport.abort()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free everything."""
        super().connection_lost(exc)
        self._unparsed = memoryview(b"")
        self.frames = []
        self.conn.reader.buffer.clear()
        self._count()
        if self._drop is not None:
            self._drop.cancel()
        if self._place is not None:
            self._place.leave()

    def _parse(self) -> None:
        """Parse for a while, if the application waits for a message."""
        self._turn = None
        until = self.loop.time() + _TURN_SECONDS
        while self._unparsed and not self.read_paused:
            if self.transport.is_closing():
                self._unparsed = memoryview(b"")
                break
            is_long = len(self.conn.reader.buffer) > _LONG_PIECE_BYTES
            length = _LONG_PIECE_BYTES if is_long else _PIECE_BYTES
            piece, self._unparsed = self._unparsed[:length], self._unparsed[length:]
            super().data_received(bytes(piece))
            if self.loop.time() > until:
                break
        self._count()
        self._go_on()

    def _go_on(self) -> None:
        """Have the rest parsed, unless messages wait, and read on after it."""
        if self.read_paused or self.disconnected:
            return
        if self._unparsed:
            self._is_held = True
            self.transport.pause_reading()
            if self._turn is None:
                self._turn = self.loop.call_soon(self._parse)
        elif self._is_held:
            self._is_held = False
            self.transport.resume_reading()

    def _count(self) -> None:
        """Tell how many bytes are held, of a message that has not ended and of whole ones.

        Short ones do not count: they always find room. Where a long one does not, the socket ends.
        """
        unfinished = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        self._time(unfinished)
        if self._account is None:
            return
        held = (unfinished, *self._queued, self._in_hand)
        try:
            self._account.hold(sum(length for length in held if length > INLINE_BYTES))
        except ApiError as error:
            self._queued.clear()
            self._unparsed = memoryview(b"")
            while not self.queue.empty():
                self.queue.get_nowait()
            self._fail(CloseCode.TRY_AGAIN_LATER, error.message)
            self._count()

    def _time(self, unfinished: int) -> None:
        """A long message that does not end in time ends the socket."""
        if unfinished <= INLINE_BYTES:
            if self._overdue is not None:
                self._overdue.cancel()
                self._overdue = None
        elif self._overdue is None and not self.disconnected:
            self._overdue = self.loop.call_later(self._message_deadline, self._give_up)

    def _give_up(self) -> None:
        self._overdue = None
        if self.read_paused:  # it cannot end before the application goes on
            self._count()
        elif not self.close_sent:
            self._fail(CloseCode.POLICY_VIOLATION, "a message was too long on its way")
            self._count()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.frames = []
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        self._drop_soon(_CLOSE_GRACE_SECONDS)

    def _drop_soon(self, seconds: float) -> None:
        if not self.disconnected and self._drop is None:
            self._drop = self.loop.call_later(seconds, self.transport.abort)


def head_without_upgrade(
    method: bytes, url: bytes, version: bytes, headers: list[tuple[bytes, bytes]]
) -> bytes:
    """The head of a request that wished for what is not spoken here, without the wish."""
    connection = [
        token.strip()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
        if token.strip().lower() not in _HOP_BY_HOP
    ]
    kept = [(name, value) for name, value in headers if name not in _HOP_BY_HOP]
    if connection:
        kept.append((b"connection", b", ".join(connection)))
    lines = [b"%s %s HTTP/%s\r\n" % (method, url, version)]
    lines += [b"%s: %s\r\n" % header for header in kept]
    return b"".join([*lines, b"\r\n"])
