"""HTTP/1.1 as uvicorn speaks it, with bounds on what a peer may send, and on how long it takes.

A reader that stops reading keeps `send` waiting for ever, and closing its transport politely waits
for the same full buffer. So every scope carries a way to drop its transport:
`scope["extensions"]["partywall.abort"]["abort"]()`.
"""

from __future__ import annotations

import asyncio
import re
from enum import Enum
from typing import Any

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.transport.bounds import ConnectionBounds, Place
from app.transport.half_closed import PROBE_EXTENSION, PROCESSING, Outlet, Probe, Probing
from app.transport.http import body_too_large, head_too_large, refusal
from app.transport.large_bodies import LARGE_EXTENSION, LargeBody
from app.transport.websocket_protocol import (
    ABORT_EXTENSION,
    WebSocketProtocol,
    head_without_upgrade,
)
from app.wire.errors import ApiError, invalid_request

_PIECE_BYTES = 16 * 1024
"""What is parsed at once: so much may come beyond a bound before that is noticed."""
_MAX_PIPELINED = 8
_LINGER_SECONDS = 1.0
"""For a peer to read why it was refused, before what it still sends resets the connection."""
_LEAST_PROGRESS_BYTES = 16 * 1024
_HOST = re.compile(rb"[^\x00-\x20\"#/<>?@\\^`{|}\x7f-\xff]*")


class _Phase(Enum):
    BETWEEN = "between requests"
    HEAD = "in a request's head"
    BODY = "in a request's body"


class HttpProtocol(HttpToolsProtocol):
    """One connection. What goes beyond a bound is answered once, and then the connection ends."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: ConnectionBounds,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = bounds.idle_seconds  # type: ignore[assignment]
        self._bounds = bounds
        self._place: Place | None = place
        self._phase = _Phase.BETWEEN
        self._head_bytes = 0
        self._content_bytes = 0  # in the piece that is being parsed
        self._framing_bytes = 0  # everything else of this request, less the content behind it
        self._body_bytes = 0
        self._large = LargeBody(self._expect_what_is_due)
        self._fault: ApiError | None = None
        self._deaf = False
        self._running: RequestResponseCycle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_phase: _Phase | None = None
        self._unsent_bytes = 0
        self._unsent_check: asyncio.TimerHandle | None = None
        self._drop: asyncio.TimerHandle | None = None
        self._probing: Probing | None = None
        self._probe_answer: Probe | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._expect(_Phase.HEAD)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, piece by piece."""
        self._unset_keepalive_if_required()
        unread = memoryview(data)
        while unread and not self._deaf:
            piece, unread = unread[:_PIECE_BYTES], unread[_PIECE_BYTES:]
            again = self._parse(piece)
            if again is not None:
                unread = memoryview(again + unread)
        if not self._deaf:
            self._expect_what_is_due()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever still answers, and free everything."""
        super().connection_lost(exc)
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self._expect(None)
        for timer in (self._unsent_check, self._drop):
            if timer is not None:
                timer.cancel()
        if self._probing is not None:
            self._probing.stop()
        if self._place is not None:
            self._place.leave()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to go on: to the answer of a whole request, until its reader has left as well."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if self.scheme == "https" or cycle.scope["http_version"] != "1.1":
            return False  # there is no half of TLS, and nothing to probe with in HTTP/1.0
        cycle.keep_alive = False
        self._probing = Probing(self._probe)
        return True

    def _probe(self) -> None:
        """Write what a reader passes over: to one that has left it fails, the second time."""
        running = self._running
        if running is None or running.response_complete:
            return
        if not running.response_started:
            self.transport.write(PROCESSING)
        elif self._probe_answer is not None:
            self._probe_answer()

    def _probe_with(self, probe: Probe) -> None:
        self._probe_answer = probe

    def pause_writing(self) -> None:
        """The peer is behind: it may be for a while."""
        super().pause_writing()
        self._watch_unsent()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nobody uses."""
        super().timeout_keep_alive_handler()
        self._watch_unsent()

    # What the parser calls; an exception ends the request

    def on_message_begin(self) -> None:
        """Offer the abort extension to the request that begins."""
        super().on_message_begin()
        self._phase = _Phase.HEAD
        self._head_bytes = self._framing_bytes = self._body_bytes = 0
        self._large = LargeBody(self._expect_what_is_due)
        self.scope["extensions"] = {
            ABORT_EXTENSION: {"abort": self.transport.abort},
            PROBE_EXTENSION: {"with": self._probe_with},
            LARGE_EXTENSION: {"body": self._large},
        }

    def on_url(self, url: bytes) -> None:
        """Take the request's target, or a part of it."""
        self._take_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. What comes behind a body (a trailer) is counted and dropped."""
        self._take_head(len(name) + len(value) + len(b": \r\n"))
        if self._phase is _Phase.HEAD:
            if len(self.headers) >= self._bounds.max_headers:
                raise self._found(head_too_large(f"more than {self._bounds.max_headers} headers"))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the connection is to become something else."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise self._found(invalid_request(f"HTTP {version} is not spoken here."))
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            raise self._found(invalid_request("Send one Host header."))
        if hosts and not _HOST.fullmatch(hosts[0]):
            raise self._found(invalid_request("This Host header names no host."))
        if self.parser.should_upgrade():
            return  # see `_parse`
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise self._found(invalid_request("Too many requests wait for earlier ones' answers."))
        super().on_headers_complete()
        self.cycle.transport = Outlet(self.transport, self._end)  # type: ignore[assignment]
        self._phase = _Phase.BODY

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._content_bytes += len(body)
        self._body_bytes += len(body)
        if self._body_bytes > 2 * self._bounds.max_body_bytes and not self._large.is_allowed:
            # The application has said so by now, or will not read it.
            raise self._found(body_too_large(self._bounds.max_body_bytes))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here as a whole."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._phase = _Phase.BETWEEN

    def on_response_complete(self) -> None:
        """Go on with the connection, or close it."""
        if self._drop is not None:
            return  # it is being closed
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_unsent()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running, self._probe_answer = cycle, None
        super()._start_asgi_task(cycle, app)

    # Bounds of bytes

    def _parse(self, piece: memoryview) -> bytes | None:
        """Parse a piece; returns what is to be parsed before anything else."""
        self._content_bytes = 0
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            return self._upgrade(bytes(piece[upgrade.args[0] :]))
        except httptools.HttpParserError:
            self._refuse(self._fault or invalid_request("This is no HTTP request."))
            return None
        # Chunk sizes and their extensions are to be no longer than what they announce.
        grown = self._framing_bytes + len(piece) - 2 * self._content_bytes
        self._framing_bytes = max(0, grown)
        if self._phase is _Phase.BETWEEN:
            self._framing_bytes = 0
        elif self._framing_bytes > self._bounds.max_header_bytes:
            self._refuse(head_too_large(f"more than {self._bounds.max_header_bytes} bytes"))
        return None

    def _take_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self._bounds.max_header_bytes:
            raise self._found(head_too_large(f"more than {self._bounds.max_header_bytes} bytes"))

    def _found(self, fault: ApiError) -> ApiError:
        """Keep `fault`: the parser turns every exception into one of its own."""
        self._fault = fault
        return fault

    # Bounds of time

    def _expect_what_is_due(self) -> None:
        phase = self._phase
        if phase is _Phase.BETWEEN:
            answered = self.cycle is None or self.cycle.response_complete
            # Something came that begins no request, such as line breaks.
            self._expect(_Phase.HEAD if answered else None)
        else:
            self._expect(None if self._large.is_allowed and phase is _Phase.BODY else phase)

    def _expect(self, phase: _Phase | None) -> None:
        """Let a deadline run for `phase`, from its beginning on."""
        if phase is self._deadline_phase:
            return
        self._deadline_phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is not None:
            bounds = self._bounds
            in_head = phase is _Phase.HEAD
            seconds = bounds.header_deadline_seconds if in_head else bounds.body_deadline_seconds
            self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._phase is _Phase.BETWEEN:
            self._deaf = True
            self._hang_up()
        else:
            message = "The request did not arrive in time."
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _watch_unsent(self) -> None:
        """Drop the connection unless its peer goes on reading what it has been sent."""
        if self._unsent_check is None:
            self._unsent_bytes = self.transport.get_write_buffer_size()
            # A stream has the same deadline, and ends in better order.
            seconds = self._bounds.send_deadline_seconds + _LINGER_SECONDS
            self._unsent_check = self.loop.call_later(seconds, self._check_unsent)

    def _check_unsent(self) -> None:
        self._unsent_check = None
        if not self.flow.write_paused and not self.transport.is_closing():
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent > self._unsent_bytes - _LEAST_PROGRESS_BYTES:
            self.transport.abort()
        else:
            self._watch_unsent()

    # Refusals

    def _refuse(self, error: ApiError) -> None:
        """Answer with `error` where an answer is due, take nothing more, and close."""
        self._deaf = True
        self._expect(None)
        cycle = self.cycle
        if self._phase is not _Phase.BODY:
            if cycle is None or cycle.response_complete:
                self._answer(error)
            else:
                cycle.keep_alive = False  # what was asked before is answered first
        elif cycle.response_complete:
            self._hang_up()
        elif cycle.response_started or cycle is not self._running:
            self.transport.abort()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._answer(error)

    def _answer(self, error: ApiError) -> None:
        self.transport.write(refusal(error, self.server_state.default_headers))
        self._hang_up()

    def _end(self) -> None:
        """Close behind an answer, which a peer that still sends has to be able to read."""
        if self._phase is _Phase.BETWEEN:
            self.transport.close()
            return
        self._deaf = True
        self._expect(None)
        self._hang_up()

    def _hang_up(self) -> None:
        """Close, though the peer may still be sending: what it sends is read, and dropped."""
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()
        if self._drop is None:
            self._drop = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    # Upgrades

    def _upgrade(self, rest: bytes) -> bytes | None:
        """Become a WebSocket, or ignore the wish (RFC 9110, section 7.8) and parse once more."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(ApiError(405, "This is no proxy.", code="method_not_allowed"))
        elif not self._is_handshake(method):
            version = self.parser.get_http_version().encode()
            head = head_without_upgrade(method, self.url, version, self.headers)
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return head + rest
        elif rest:
            self._refuse(invalid_request("Wait for the handshake's answer before sending frames."))
        elif self.cycle is not None and not self.cycle.response_complete:
            self._refuse(invalid_request("Wait for the answers before opening a WebSocket."))
        else:
            self._become_websocket()
        return None

    def _is_handshake(self, method: bytes) -> bool:
        """Whether a WebSocket is asked for: by a GET without a body."""
        return (
            self._get_upgrade() == b"websocket"
            and method == b"GET"
            and self.parser.get_http_version() == "1.1"
            and all(
                name != b"transfer-encoding" and (name != b"content-length" or value == b"0")
                for name, value in self.headers
            )
        )

    def _become_websocket(self) -> None:
        self._deaf = True
        self._expect(None)
        self.connections.discard(self)
        protocol = WebSocketProtocol(
            self.config,
            self.server_state,
            self.app_state,
            self._place,
            self._bounds.body_deadline_seconds,
        )
        self._place = None
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        protocol.open(self.url, self.headers)
