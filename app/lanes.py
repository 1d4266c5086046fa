"""The lanes of one socket: first in, first out within a lane, side by side across lanes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing
from typing import Any

import msgspec

from app.errors import ApiError, as_api_error, internal_error, invalid_request
from app.history import SocketHistory
from app.limits import ServiceLimits
from app.responses import ResponseRun, Responses
from app.streams import Outbox
from app.wire_events import encode_event
from app.wire_responses import CreateMessage
from tenants.records import Tenant

_log = logging.getLogger(__name__)


def error_event(error: ApiError, stream_id: str | None = None) -> bytes:
    """An error as a socket carries it."""
    event: dict[str, Any] = {"type": "error", "status": error.status, "error": error.detail()}
    if stream_id is not None:
        event["stream_id"] = stream_id
    return msgspec.json.encode(event)


def too_old() -> ApiError:
    """What a socket is told at the end of its life."""
    message = "This socket has reached its greatest age: open a new one."
    return invalid_request(message, None, "websocket_connection_limit_reached")


class _Entry:
    """One `response.create` in its lane: waiting, starting or running."""

    def __init__(self, message: CreateMessage) -> None:
        self.message = message
        self.run: ResponseRun | None = None
        self.cancelled = False

    async def cancel(self) -> None:
        self.cancelled = True
        if self.run is not None:
            await self.run.cancel()


class Lanes:
    """Runs one socket's responses and writes their events to its outbox."""

    def __init__(
        self, responses: Responses, tenant: Tenant, outbox: Outbox, limits: ServiceLimits
    ) -> None:
        self._responses = responses
        self._tenant = tenant
        self._outbox = outbox
        self._limits = limits
        self._history = SocketHistory(limits.socket_history_responses)
        self._active = asyncio.Semaphore(limits.max_active_responses_per_socket)
        self._lanes: dict[str | None, deque[_Entry]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired = False

    def submit(self, message: CreateMessage) -> None:
        """Queue a create message in its lane. Raises `ApiError` where the socket has too many."""
        if self._retired:
            raise too_old()
        lane = self._lanes.get(message.stream_id)
        if lane is None and len(self._lanes) >= self._limits.max_lanes_per_socket:
            raise ApiError(
                400,
                f"A socket holds {self._limits.max_lanes_per_socket} lanes at once.",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        if sum(map(len, self._lanes.values())) >= self._limits.inbox_messages:
            raise ApiError(
                429,
                f"{self._limits.inbox_messages} responses are waiting on this socket already.",
                code="inbox_full",
            )
        if lane is not None:
            lane.append(_Entry(message))
            return
        self._lanes[message.stream_id] = deque([_Entry(message)])
        task = asyncio.create_task(self._run_lane(message.stream_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self, response_id: str | None, stream_id: str | None) -> None:
        """End the named response, or the lane's current one. Raises `ApiError` if there is none."""
        if response_id is not None:
            entries = [entry for lane in self._lanes.values() for entry in lane]
            for entry in entries:
                if entry.run is not None and entry.run.resource.id == response_id:
                    await entry.cancel()
                    return
        elif stream_id in self._lanes:
            await self._lanes[stream_id][0].cancel()
            return
        what = f"response '{response_id}'" if response_id else "response in this lane"
        raise ApiError(404, f"No {what} is running.", code="response_not_found")

    def evict(self, response_id: str) -> None:
        """Forget a socket's own response, because a continuation of it failed."""
        self._history.evict(response_id)

    async def retire(self) -> None:
        """Refuse new responses and cancel all others; returns when each has had its last event."""
        self._retired = True
        for entry in [entry for lane in self._lanes.values() for entry in lane]:
            await entry.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Abort everything at once: the reader is gone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run_lane(self, stream_id: str | None) -> None:
        """Serve a lane until it is empty; the entry being served stays at its head."""
        lane = self._lanes[stream_id]
        try:
            while lane:
                async with self._active:
                    await self._serve(lane[0])
                lane.popleft()
        finally:
            del self._lanes[stream_id]

    async def _serve(self, entry: _Entry) -> None:
        message = entry.message
        try:
            entry.run = await self._responses.start(self._tenant, message, self._history)
            if entry.cancelled:
                await entry.run.cancel()
            async with aclosing(entry.run.events()) as events:
                async for event in events:
                    await self._outbox.put(encode_event(event, message.stream_id))
            failed = entry.run.resource.status == "failed"
        except Exception as error:  # noqa: BLE001 - a lane outlives any bug in one response
            failed = True
            known = as_api_error(error)
            if known is None:
                _log.exception("a response on a socket failed")
                known = internal_error()
            self._responses.metrics.count_refused("responses", known.status)
            await self._outbox.put(error_event(known, message.stream_id))
        finally:
            if entry.run is not None:
                await entry.run.close()
        if failed and message.previous_response_id is not None:
            self.evict(message.previous_response_id)
