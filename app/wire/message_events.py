"""Anthropic's Messages API on the wire: what goes out, whole or as events, errors among them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.wire.errors import ApiError
from app.wire.events import Sent

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""What it calls errors, by their status."""


class NoThreads(Sent, kw_only=True):
    """No conversation is held for a client that could send it whole: it does so when told this."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"


class ErrorInside(Sent, kw_only=True):
    """What is wrong."""

    type: str
    message: str
    details: NoThreads | UnsetType = UNSET


class MessageError(Sent, kw_only=True, tag_field="type", tag="error"):
    """Why a request was not served, or a stream ends before its answer does."""

    error: ErrorInside
    request_id: str | None = None


def message_error(error: ApiError, request_id: str | None) -> MessageError:
    """An error in this API's words, which has no field for what is at fault."""
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else _TYPES[400])
    is_thread = (error.param, error.code) == ("thread", "unsupported_value")
    details = NoThreads() if is_thread else UNSET
    inside = ErrorInside(type=kind, message=message, details=details)
    return MessageError(error=inside, request_id=request_id)


class CacheCreation(Sent, kw_only=True):
    """Tokens that are new in the cache before a breakpoint, by how long they are leased."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputDetails(Sent, kw_only=True):
    """What of an answer is reasoning."""

    thinking_tokens: int


class MessageUsage(Sent, kw_only=True):
    """`input_tokens` are those of the prompt that are in neither of the cache's numbers."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    output_tokens_details: OutputDetails
    service_tier: Literal["standard"] = "standard"


class SentText(Sent, kw_only=True, tag_field="type", tag="text"):
    """What is said."""

    text: str


class SentThinking(Sent, kw_only=True, tag_field="type", tag="thinking"):
    """What was reasoned; the `signature` has it, too, for nobody but this service."""

    thinking: str
    signature: str


class SentToolUse(Sent, kw_only=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


SentBlock = SentText | SentThinking | SentToolUse


class SentMessage(Sent, kw_only=True, tag_field="type", tag="message"):
    """An answer."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[SentBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    container: None = None


class MessageTokens(Sent, kw_only=True):
    """How long a prompt is."""

    input_tokens: int


class SentModel(Sent, kw_only=True, tag_field="type", tag="model"):
    """A model that is served; `created_at` is a time of RFC 3339."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(Sent, kw_only=True):
    """Some of the models, and whether there are more where it was read on to."""

    data: list[SentModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageStart(Sent, kw_only=True, tag_field="type", tag="message_start"):
    """An answer begins."""

    message: SentMessage


class BlockStart(Sent, kw_only=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: SentBlock


class MoreText(Sent, kw_only=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class MoreThinking(Sent, kw_only=True, tag_field="type", tag="thinking_delta"):
    """More that is reasoned."""

    thinking: str


class Signature(Sent, kw_only=True, tag_field="type", tag="signature_delta"):
    """What a block of reasoning ends with."""

    signature: str


class MoreInput(Sent, kw_only=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON."""

    partial_json: str


class BlockDelta(Sent, kw_only=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: MoreText | MoreThinking | Signature | MoreInput


class BlockStop(Sent, kw_only=True, tag_field="type", tag="content_block_stop"):
    """A block ends."""

    index: int


class Ending(Sent, kw_only=True):
    """Why an answer has ended."""

    stop_reason: StopReason
    stop_sequence: str | None
    container: None = None


class MessageDelta(Sent, kw_only=True, tag_field="type", tag="message_delta"):
    """An answer has ended."""

    delta: Ending
    usage: MessageUsage


class MessageStop(Sent, kw_only=True, tag_field="type", tag="message_stop"):
    """Nothing follows."""


MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | MessageError
)
PING = msgspec.json.encode({"type": "ping"})
