"""What a client's WebSocket frame asks for."""

from __future__ import annotations

from functools import partial
from typing import Any

from app.transport.bounds import INLINE_BYTES
from app.transport.socket_lanes import Lanes, error_event
from app.upkeep.workers import Workers
from app.wire.common import decode_json, parse
from app.wire.errors import ApiError, invalid_request
from app.wire.responses import CancelMessage, CreateMessage, ResumeMessage

_Message = CreateMessage | ResumeMessage | CancelMessage
_KINDS: dict[object, type[_Message]] = {
    "response.create": CreateMessage,
    "response.resume": ResumeMessage,
    "response.cancel": CancelMessage,
}


class _Refused(Exception):
    """A message that cannot be served, its lane, and the response that it would have continued."""

    def __init__(self, error: ApiError, stream_id: str | None, previous: str | None) -> None:
        super().__init__(error)
        self.error = error
        self.stream_id = stream_id
        self.previous = previous


async def take_frame(
    frame: Any, lanes: Lanes, workers: Workers, tenant: str, max_bytes: int
) -> bytes | None:
    """Do what an ASGI `websocket.receive` message asks; returns the error event where it cannot be.

    It waits for no response: what comes of it, the lanes will send.
    """
    try:
        data = _data(frame, max_bytes)
        work = partial(_message, data)
        message = work() if len(data) <= INLINE_BYTES else await workers.run(tenant, work)
        _take(message, len(data), lanes)
    except _Refused as refused:
        if refused.previous is not None:
            lanes.evict(refused.previous)
        return error_event(refused.error, refused.stream_id)
    except ApiError as error:
        return error_event(error)
    return None


def _data(frame: Any, max_bytes: int) -> bytes:
    """The text of a frame. Raises `ApiError`."""
    text = frame.get("text")
    if text is None:
        raise invalid_request(
            "Send text frames: binary ones carry nothing here.", None, "invalid_type"
        )
    data = bytes(text.encode())
    if len(data) > max_bytes:
        raise invalid_request(f"A message holds {max_bytes} bytes.", None, "message_too_large")
    return data


def _message(data: bytes) -> _Message:
    """Raises `ApiError` for what is no JSON object, `_Refused` for one that is no message."""
    document = decode_json(data)
    if not isinstance(document, dict):
        raise invalid_request("Expected a JSON object.", None, "invalid_type")
    stream_id, previous = None, None
    try:
        stream_id = _lane_of(document)
        kind = document.get("type")
        model = _KINDS.get(kind) if isinstance(kind, str) else None
        if model is None:
            named = ", ".join(map(repr, _KINDS))
            message = f"Unknown message type {kind!r}: send one of {named}."
            raise invalid_request(message, "type", "unknown_message_type")
        if model is CreateMessage and isinstance(document.get("previous_response_id"), str):
            previous = document["previous_response_id"]
        return parse(model, document)
    except ApiError as error:
        raise _Refused(error, stream_id, previous) from error


def _lane_of(document: dict[str, Any]) -> str | None:
    """The lane a message names. Raises `ApiError` with code `invalid_stream_id`."""
    stream_id = document.get("stream_id")
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not 1 <= len(stream_id) <= 64:
        message = "'stream_id' must be a string of 1 to 64 characters."
        raise invalid_request(message, "stream_id", "invalid_stream_id")
    return stream_id


def _take(message: _Message, num_bytes: int, lanes: Lanes) -> None:
    try:
        if isinstance(message, CancelMessage):
            lanes.cancel(message.response_id, message.stream_id)
        else:
            lanes.submit(message, num_bytes)
    except ApiError as error:
        previous = message.previous_response_id if isinstance(message, CreateMessage) else None
        raise _Refused(error, message.stream_id, previous) from error
