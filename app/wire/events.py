"""What the Responses API sends: the response resource and the events of its stream.

The resource carries every field that Open Responses' strict schema asks for. A cancelled response
ends its stream with `response.incomplete`, whose response has `status: "cancelled"`: the protocol
has no terminal event of its own for it, and clients wait for one of the three that they know.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.wire.common import Tier
from app.wire.prompt_cache import CacheDiagnostics, CacheMode, Retention, Ttl

_PADDED_BYTES = 16
"""Padded texts have multiples of it."""

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Sent(msgspec.Struct):
    """What the service itself makes: written as fast as can be, and not validated."""


class TopLogprob(Sent, kw_only=True):
    """A likely alternative to a token."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob, kw_only=True):
    """A generated token and its alternatives, natural-log probabilities."""

    top_logprobs: list[TopLogprob]


class PromptLogprob(Sent, kw_only=True):
    """A token in some place of a prompt, the `rank`-th likeliest there, as vLLM tells it."""

    logprob: float
    rank: int
    decoded_token: str


EncodedLogprob = msgspec.Raw
"""As JSON a `TokenLogprob`, or of a prompt a `PromptLogprob` for each token id."""


class TextPart(Sent, kw_only=True):
    """The text of an output message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[EncodedLogprob] = []


class OutputMessage(Sent, kw_only=True, tag_field="type", tag="message"):
    """The assistant's message."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[TextPart]


class FunctionCall(Sent, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls, with arguments as JSON."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CustomToolCall(Sent, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A custom tool that the model calls, with a text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


class ReasoningText(Sent, kw_only=True):
    """What the model reasoned."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class Reasoning(Sent, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model reasoned before it answered; nothing here sums it up."""

    id: str
    status: ItemStatus
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText]
    encrypted_content: str | None = None


OutputItem = OutputMessage | Reasoning | FunctionCall | CustomToolCall


class InputTokensDetails(Sent, kw_only=True):
    """`cached_tokens` of the prompt were found in the cache, `cache_write_tokens` are new there."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Sent, kw_only=True):
    """`reasoning_tokens` are those of reasoning items."""

    reasoning_tokens: int = 0


class Usage(Sent, kw_only=True):
    """Token counts of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int


class ResponseFailure(Sent, kw_only=True):
    """Why a response failed: the code of the error that ended it."""

    code: str
    message: str


class IncompleteDetails(Sent, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "service_restart"]


class AppliedCacheOptions(Sent, kw_only=True):
    """How a prompt is kept; `lease_seconds`, an extension, is for how long at least."""

    mode: CacheMode
    ttl: Ttl
    comparison_response_id: str | UnsetType = UNSET
    lease_seconds: float


class ResponseResource(Sent, kw_only=True):
    """The response object."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    previous_response_id: str | None
    conversation: dict[str, str] | None = None
    instructions: str | None
    prompt: dict[str, Any] | None
    output: list[OutputItem] = []
    tools: list[dict[str, Any]] = []
    tool_choice: Any = "auto"
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool = True
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    reasoning: dict[str, Any] | None = None
    usage: Usage | None = None
    max_output_tokens: int | None
    max_tool_calls: None = None
    store: bool
    background: bool
    service_tier: Tier
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_options: AppliedCacheOptions | UnsetType = UNSET
    prompt_cache_retention: Retention | UnsetType = UNSET
    prompt_cache_diagnostics: CacheDiagnostics | UnsetType = UNSET


class InputPart(Sent, kw_only=True):
    """The text of a message that a compaction kept."""

    type: Literal["input_text"] = "input_text"
    text: str


class CompactedMessage(Sent, kw_only=True):
    """A system message that a compaction kept word for word."""

    type: Literal["message"] = "message"
    id: str
    status: Literal["completed"] = "completed"
    role: Literal["system", "developer"]
    content: list[InputPart]


class Compaction(Sent, kw_only=True):
    """The sealed summary of a conversation."""

    type: Literal["compaction"] = "compaction"
    id: str
    encrypted_content: str


class CompactedResource(Sent, kw_only=True):
    """A compacted conversation: its output is the input of the next request."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[CompactedMessage | Compaction]
    usage: Usage


LifecycleKind = Literal[
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]


class Event(Sent, kw_only=True):
    """One event of a stream; `sequence_number` counts from 0 within its response."""

    type: str
    sequence_number: int = 0


class LifecycleEvent(Event, kw_only=True):
    """The response as a whole changed. The first one names fields that nothing comes of."""

    type: LifecycleKind
    response: ResponseResource
    ignored_fields: list[str] | UnsetType = UNSET


class ItemEvent(Event, kw_only=True):
    """An output item began or ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int = 0
    item: OutputItem


class _OfItem(Event, kw_only=True):
    """Something within an output item."""

    item_id: str
    output_index: int = 0


class _OfPart(_OfItem, kw_only=True):
    """Something within a content part."""

    content_index: int = 0


class PartEvent(_OfPart, kw_only=True):
    """A content part began or ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: TextPart | ReasoningText


class TextDelta(_OfPart, kw_only=True):
    """More text."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str
    logprobs: list[EncodedLogprob] = []
    obfuscation: str | UnsetType = UNSET


class TextDone(_OfPart, kw_only=True):
    """The text is whole."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str
    logprobs: list[EncodedLogprob] = []


class ReasoningDelta(_OfPart, kw_only=True):
    """More of what the model reasons."""

    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    delta: str
    obfuscation: str | UnsetType = UNSET


class ReasoningDone(_OfPart, kw_only=True):
    """The reasoning is whole."""

    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    text: str


def padding(text: str) -> str:
    """Letters for an `obfuscation` field: with it, lengths tell little of what a text is."""
    missing = -len(text.encode()) % _PADDED_BYTES
    return secrets.token_hex(_PADDED_BYTES // 2)[:missing]


class ArgumentsDelta(_OfItem, kw_only=True):
    """More of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    delta: str
    obfuscation: str | UnsetType = UNSET


class ArgumentsDone(_OfItem, kw_only=True):
    """A call's arguments are whole."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


class InputDelta(_OfItem, kw_only=True):
    """More of a custom tool's input."""

    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"
    delta: str
    obfuscation: str | UnsetType = UNSET


class InputDone(_OfItem, kw_only=True):
    """A custom tool's input is whole."""

    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"
    input: str


def made_id(prefix: str, request_id: str, *place: int) -> str:
    """The id of a part of an answer: the same whenever it is asked for."""
    name = f"{request_id}/{place}".encode()
    return prefix + blake2b(name, digest_size=16).hexdigest()


encode_json = msgspec.json.Encoder().encode
"""Anything that is sent, as JSON."""


def event_type(encoded: bytes) -> bytes:
    """The type of an encoded event: the first of its fields."""
    return encoded[len(b'{"type":"') : encoded.index(b'",')]


def on_lane(encoded: bytes, stream_id: str | None) -> bytes:
    """An encoded event as a socket carries it: it echoes the lane that asked for it."""
    if stream_id is None:
        return encoded
    return b'%b,"stream_id":%b}' % (encoded[:-1], msgspec.json.encode(stream_id))
