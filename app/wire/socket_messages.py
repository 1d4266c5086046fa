"""What a client sends over a WebSocket."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.wire.common import (
    Declining,
    Identifier,
    Wire,
    decode_json,
    parse,
)
from app.wire.errors import ApiError, invalid_request
from app.wire.responses import CreateBody


class CreateMessage(CreateBody):
    """`response.create` on the socket: the body of the POST, plus its lane."""

    type: Literal["response.create"]
    stream_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    stream: Annotated[Any, Declining(True)] = None


class CancelMessage(Wire):
    """`response.cancel`, an extension: ends the response named, or the lane's running one.

    Without `response_id` and `stream_id` it means the lane without a name.
    """

    type: Literal["response.cancel"]
    response_id: Identifier | None = None
    stream_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class ResumeMessage(Wire):
    """`response.resume`, an extension: the events of a response that `starting_after` has not seen.

    They are numbered as they first were. Without `starting_after` it means all of them.
    """

    type: Literal["response.resume"]
    response_id: Identifier
    starting_after: Annotated[int, Field(ge=0)] | None = None
    stream_id: Annotated[str, Field(min_length=1, max_length=64)] | None = None


SocketMessage = CreateMessage | ResumeMessage | CancelMessage
_KINDS: dict[object, type[SocketMessage]] = {
    "response.create": CreateMessage,
    "response.resume": ResumeMessage,
    "response.cancel": CancelMessage,
}


class RefusedMessage(Exception):
    """A message that cannot be served, its lane, and the response that it would have continued."""

    def __init__(
        self, error: ApiError, stream_id: str | None = None, previous: str | None = None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.stream_id = stream_id
        self.previous = previous


def socket_message(data: bytes, *, ignores_unknown: bool = False) -> SocketMessage:
    """What a client's WebSocket frame says; of `ignores_unknown` see `parse`.

    Raises `RefusedMessage`.
    """
    stream_id, previous = None, None
    try:
        document = decode_json(data)
        if not isinstance(document, dict):
            raise invalid_request("Expected a JSON object.", None, "invalid_type")
        stream_id = _lane_of(document)
        kind = document.get("type")
        model = _KINDS.get(kind) if isinstance(kind, str) else None
        if model is None:
            named = ", ".join(map(repr, _KINDS))
            refusal = f"Unknown message type {kind!r}: send one of {named}."
            raise invalid_request(refusal, "type", "unknown_message_type")
        if model is CreateMessage and isinstance(document.get("previous_response_id"), str):
            previous = document["previous_response_id"]
        message = parse(model, document, ignores_unknown=ignores_unknown)
        _ = message.ignored_fields  # known from here on
        return message
    except ApiError as error:
        raise RefusedMessage(error, stream_id, previous) from error


def _lane_of(document: dict[str, Any]) -> str | None:
    """The lane a message names. Raises `ApiError` with code `invalid_stream_id`."""
    stream_id = document.get("stream_id")
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not 1 <= len(stream_id) <= 64:
        message = "'stream_id' must be a string of 1 to 64 characters."
        raise invalid_request(message, "stream_id", "invalid_stream_id")
    return stream_id
