"""`WS /v1/responses`: the Responses API in WebSocket mode.

The client sends `response.create` (the body of `POST /v1/responses`, with `type` and, for a lane of
its own, `stream_id`) and `response.cancel` (an extension). The server sends the events of every
response, and `error` events; only these end a socket:

- 1000 the client closed it
- 1001 it reached its greatest age, after an error `websocket_connection_limit_reached`
- 1008 the client caused errors faster than it read them
- 1009 a message larger than the server accepts at all
- 1011 the server failed
- 1012 the server restarts
- 1006 (no close frame) the reader stalled past the send deadline: the connection is dropped

An upgrade is refused with HTTP 401 (no valid key) or 503 (the tenant store is down).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from starlette.websockets import WebSocket

from app.auth import authenticate, select_subprotocol
from app.context import Service
from app.errors import ApiError, as_api_error, invalid_request
from app.http_io import error_response
from app.lanes import Lanes, error_event, too_old
from app.sse import abort_transport
from app.streams import Outbox, ReaderFlooded, ReaderStalled
from app.wire import decode_json, parse
from app.wire_responses import CancelMessage, CreateMessage

_log = logging.getLogger(__name__)


async def responses_socket(socket: WebSocket) -> None:
    """Serve one socket for its whole life."""
    service: Service = socket.app.state.service
    try:
        tenant = await authenticate(service.tenants, socket)
    except Exception as error:
        known = as_api_error(error)
        if known is None:
            raise
        await socket.send_denial_response(error_response(known))
        return
    await socket.accept(subprotocol=select_subprotocol(socket.scope["subprotocols"]))
    limits = service.limits
    outbox = Outbox(limits.outbox_events, limits.inbox_messages)
    lanes = Lanes(service.responses, tenant, outbox, limits)
    service.metrics.sockets_open.inc()
    try:
        await _serve(socket, service, lanes, outbox)
    finally:
        service.metrics.sockets_open.dec()
        await lanes.close()


async def _serve(socket: WebSocket, service: Service, lanes: Lanes, outbox: Outbox) -> None:
    """Read and send side by side until either ends or the socket is too old; then close it."""
    limits = service.limits
    deadline = limits.send_deadline_seconds
    reader = asyncio.create_task(_read(socket, lanes, outbox, limits.max_message_bytes))
    sender = asyncio.create_task(outbox.send_all(socket, deadline))
    ageing = asyncio.create_task(_grow_old(lanes, outbox, limits.max_socket_seconds, deadline))
    tasks = {reader, sender, ageing}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        error = task.exception()
        if isinstance(error, ReaderStalled):
            _log.warning("a socket's reader stalled for %s s", deadline)
            abort_transport(socket.scope)
        elif isinstance(error, ReaderFlooded):
            await _close(socket, 1008, deadline)
        elif error is not None:
            raise error
        elif task is ageing:
            await _close(socket, 1001, deadline)


async def _grow_old(
    lanes: Lanes, outbox: Outbox, max_seconds: float, deadline_seconds: float
) -> None:
    """Return at the end of the socket's life, after the last event of each of its responses."""
    await asyncio.sleep(max_seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(deadline_seconds):
            await lanes.retire()
            await outbox.put(error_event(too_old()))
            await outbox.flushed()


async def _close(socket: WebSocket, code: int, deadline_seconds: float) -> None:
    try:
        async with asyncio.timeout(deadline_seconds):
            await socket.close(code)
    except (TimeoutError, RuntimeError):
        abort_transport(socket.scope)


async def _read(socket: WebSocket, lanes: Lanes, outbox: Outbox, max_bytes: int) -> None:
    """Take messages as they come until the client leaves; never waits for a stream."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        stream_id: str | None = None
        try:
            document = _document(message, max_bytes)
            stream_id = _lane_of(document)
            await _handle(document, lanes)
        except ApiError as error:
            outbox.put_now(error_event(error, stream_id))


def _document(message: Any, max_bytes: int) -> dict[str, Any]:
    """The JSON object of a text frame. Raises `ApiError`."""
    text = message.get("text")
    if text is None:
        raise invalid_request(
            "Send text frames: binary ones carry nothing here.", None, "invalid_type"
        )
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise invalid_request(f"A message holds {max_bytes} bytes.", None, "message_too_large")
    document = decode_json(text)
    if not isinstance(document, dict):
        raise invalid_request("Expected a JSON object.", None, "invalid_type")
    return document


def _lane_of(document: dict[str, Any]) -> str | None:
    """The lane a message names. Raises `ApiError` with code `invalid_stream_id`."""
    stream_id = document.get("stream_id")
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not 1 <= len(stream_id) <= 64:
        message = "'stream_id' must be a string of 1 to 64 characters."
        raise invalid_request(message, "stream_id", "invalid_stream_id")
    return stream_id


async def _handle(document: dict[str, Any], lanes: Lanes) -> None:
    kind = document.get("type")
    if kind == "response.create":
        try:
            lanes.submit(parse(CreateMessage, document))
        except ApiError:
            previous = document.get("previous_response_id")
            if isinstance(previous, str):
                lanes.evict(previous)
            raise
    elif kind == "response.cancel":
        cancel = parse(CancelMessage, document)
        await lanes.cancel(cancel.response_id, cancel.stream_id)
    else:
        message = f"Unknown message type {kind!r}: send 'response.create' or 'response.cancel'."
        raise invalid_request(message, "type", "unknown_message_type")
