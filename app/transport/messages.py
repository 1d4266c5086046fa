"""What a client's WebSocket frame asks for."""

from __future__ import annotations

from typing import Any

from app.transport.lanes import Lanes, error_event
from app.wire.common import parse
from app.wire.documents import decode_json
from app.wire.errors import ApiError, invalid_request
from app.wire.responses import CancelMessage, CreateMessage, ResumeMessage

_KINDS = "'response.create', 'response.resume' or 'response.cancel'"


def take_frame(frame: Any, lanes: Lanes, max_bytes: int) -> bytes | None:
    """Do what an ASGI `websocket.receive` message asks; returns the error event where it cannot be.

    It waits for nothing: what comes of it, the lanes will send.
    """
    stream_id: str | None = None
    try:
        document = _document(frame, max_bytes)
        stream_id = _lane_of(document)
        _handle(document, lanes)
    except ApiError as error:
        return error_event(error, stream_id)
    return None


def _document(frame: Any, max_bytes: int) -> dict[str, Any]:
    """The JSON object of a text frame. Raises `ApiError`."""
    text = frame.get("text")
    if text is None:
        raise invalid_request(
            "Send text frames: binary ones carry nothing here.", None, "invalid_type"
        )
    data = text.encode()
    if len(data) > max_bytes:
        raise invalid_request(f"A message holds {max_bytes} bytes.", None, "message_too_large")
    document = decode_json(data)
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


def _handle(document: dict[str, Any], lanes: Lanes) -> None:
    kind = document.get("type")
    if kind == "response.create":
        try:
            lanes.submit(parse(CreateMessage, document))
        except ApiError:
            previous = document.get("previous_response_id")
            if isinstance(previous, str):
                lanes.evict(previous)
            raise
    elif kind == "response.resume":
        lanes.submit(parse(ResumeMessage, document))
    elif kind == "response.cancel":
        cancel = parse(CancelMessage, document)
        lanes.cancel(cancel.response_id, cancel.stream_id)
    else:
        message = f"Unknown message type {kind!r}: send {_KINDS}."
        raise invalid_request(message, "type", "unknown_message_type")
