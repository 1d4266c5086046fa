"""The lanes of one socket: first in, first out within a lane, side by side across lanes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from app.limits.connections import Connection
from app.observe.log_lines import log_refusal
from app.observe.request_fields import current_request
from app.prompt.history import SocketHistory
from app.responses.registry import Responses
from app.responses.run import ResponseRun
from app.responses.socket.writer import ReaderLeft, SocketWriter
from app.transport.bodies import IncomingBody
from app.transport.bounds import Bounds
from app.wire.errors import ApiError, as_api_error, internal_error
from app.wire.events import on_lane
from app.wire.responses import CreateMessage, ResumeMessage

_log = logging.getLogger(__name__)
_Message = CreateMessage | ResumeMessage


def error_event(error: ApiError, stream_id: str | None = None) -> bytes:
    """An error as a socket carries it."""
    event: dict[str, Any] = {"type": "error", "status": error.status, "error": error.detail()}
    if stream_id is not None:
        event["stream_id"] = stream_id
    return msgspec.json.encode(event)


class _Lane:
    """What waits in one lane, each with the bytes that it came in, and what is served of it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[_Message, int]] = deque()
        self.run: ResponseRun | None = None
        self._serving = False
        self._cancelled = False

    def __len__(self) -> int:
        """Responses that wait, start or run here."""
        return len(self.waiting) + self._serving

    def take(self) -> _Message:
        """The message that is served now."""
        message, _ = self.waiting.popleft()
        self._serving = True
        return message

    def began(self, run: ResponseRun) -> None:
        """What was taken has become a response."""
        self.run = run
        if self._cancelled:
            run.cancel()

    def ended(self) -> None:
        """What was taken is over."""
        self.run = None
        self._serving = self._cancelled = False

    def cancel(self) -> None:
        """End the response that is served, or the next one."""
        self._cancelled = True
        if self.run is not None:
            self.run.cancel()


class _LaneReader:
    """A reader of streams: the writer, with the lane's name on every event."""

    def __init__(self, writer: SocketWriter, stream_id: str | None) -> None:
        self._writer = writer
        self._stream_id = stream_id

    def offer(self, event: bytes) -> bool:
        """See `app.responses.event_log.Reader`."""
        return self._writer.offer(on_lane(event, self._stream_id))

    async def send(self, event: bytes) -> None:
        """See `app.responses.event_log.Reader`. Raises `ReaderLeft`."""
        await self._writer.send(on_lane(event, self._stream_id))


class Lanes:
    """Runs one socket's responses and sends their events to its reader.

    The bytes of messages that wait count in `waiting`. `on_idle` is called whenever the last lane
    has become empty.
    """

    def __init__(
        self,
        responses: Responses,
        connection: Connection,
        writer: SocketWriter,
        bounds: Bounds,
        waiting: IncomingBody,
        on_idle: Callable[[], None],
    ) -> None:
        self._responses = responses
        self._waiting = waiting
        self._connection = connection
        self._writer = writer
        self._bounds = bounds
        self._on_idle = on_idle
        self.history = SocketHistory(bounds.socket_history_responses, bounds.socket_history_bytes)
        self._active = asyncio.Semaphore(bounds.max_active_responses_per_socket)
        self._lanes: dict[str | None, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusal: ApiError | None = None

    @property
    def idle(self) -> bool:
        """Whether no response is waiting or running."""
        return not self._lanes

    def submit(self, message: _Message, num_bytes: int) -> None:
        """Queue a message of `num_bytes` in its lane.

        Raises `ApiError` where the socket has too many, or too long ones, or its tenant has.
        """
        if self._refusal is not None:
            raise self._refusal
        lane = self._lanes.get(message.stream_id)
        if lane is None and len(self._lanes) >= self._bounds.max_lanes_per_socket:
            raise ApiError(
                400,
                f"A socket holds {self._bounds.max_lanes_per_socket} lanes at once.",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        if sum(map(len, self._lanes.values())) >= self._bounds.inbox_messages:
            raise ApiError(
                429,
                f"{self._bounds.inbox_messages} responses are waiting on this socket already.",
                code="inbox_full",
            )
        waiting_bytes = self._num_waiting_bytes()
        if waiting_bytes and waiting_bytes + num_bytes > self._bounds.max_message_bytes:
            raise ApiError(
                429,
                f"{waiting_bytes} bytes are waiting on this socket already; it holds "
                f"{self._bounds.max_message_bytes}.",
                code="inbox_full",
            )
        self._waiting.hold(waiting_bytes + num_bytes)
        if lane is None:
            lane = self._lanes[message.stream_id] = _Lane()
            task = asyncio.create_task(self._run_lane(message.stream_id, lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lane.waiting.append((message, num_bytes))

    def cancel(self, response_id: str | None, stream_id: str | None) -> None:
        """End the named response, or the lane's current one. Raises `ApiError` if there is none."""
        if response_id is not None:
            for lane in self._lanes.values():
                if lane.run is not None and lane.run.resource.id == response_id:
                    lane.cancel()
                    return
        elif stream_id in self._lanes:
            self._lanes[stream_id].cancel()
            return
        what = f"response '{response_id}'" if response_id else "response in this lane"
        raise ApiError(404, f"No {what} is running.", code="response_not_found")

    def cancel_all(self) -> None:
        """End every response that has begun."""
        for lane in self._lanes.values():
            lane.cancel()

    def refuse(self, error: ApiError) -> None:
        """From now on answer whatever has not begun yet with `error`."""
        self._refusal = error

    async def finished(self) -> None:
        """Wait until every response has had its last event."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Read no further: the responses that have begun are left to themselves."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._waiting.hold(0)

    def _num_waiting_bytes(self) -> int:
        return sum(num_bytes for lane in self._lanes.values() for _, num_bytes in lane.waiting)

    async def _run_lane(self, stream_id: str | None, lane: _Lane) -> None:
        """Serve a lane until it is empty."""
        try:
            while lane.waiting:
                async with self._active:
                    await self._serve(lane)
                lane.ended()
        except ReaderLeft:
            pass  # the socket is about to close, and to close its lanes
        finally:
            del self._lanes[stream_id]
            if self.idle:
                self._on_idle()

    async def _serve(self, lane: _Lane) -> None:
        """Send the events of one response, or why there are none. Raises `ReaderLeft`."""
        message = lane.take()
        self._waiting.hold(self._num_waiting_bytes())
        stream_id = message.stream_id
        previous = message.previous_response_id if isinstance(message, CreateMessage) else None
        try:
            run, after = await self._begin(message)
            del message  # its texts have become tokens
            lane.began(run)
            await run.feed(after, _LaneReader(self._writer, stream_id))
            failed = run.resource.status == "failed"
        except ReaderLeft:
            raise
        except Exception as error:  # noqa: BLE001 - a lane outlives any bug in one response
            failed = True
            await self._writer.send(self._refusal_event(error, stream_id))
        if failed and previous:
            self.history.evict(previous)

    def _refusal_event(self, error: Exception, stream_id: str | None) -> bytes:
        """What the client is told of `error`, which no frame that it went through may hold."""
        known = as_api_error(error)
        if known is None:
            _log.error("a response on a socket failed", exc_info=error)
            known = internal_error()
        self._responses.metrics.count_refused("responses", known.status)
        log_refusal(known, current_request())
        return error_event(known, stream_id)

    async def _begin(self, message: _Message) -> tuple[ResponseRun, int]:
        """Start or find a response; with the number of the event that it has been read to."""
        if self._refusal is not None:
            raise self._refusal
        principal = self._connection.principal
        if isinstance(message, CreateMessage):
            return await self._responses.start(principal, message, self.history), -1
        after = -1 if message.starting_after is None else message.starting_after
        return await self._responses.resume(principal, message.response_id, after), after
