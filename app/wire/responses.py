"""What a client sends to the Responses API: bodies, and messages over a WebSocket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.wire.bounded_json import decode_json
from app.wire.common import (
    CacheKey,
    Declined,
    DeclinedList,
    Declining,
    Effort,
    EffortWish,
    Identifier,
    Metadata,
    SamplingFields,
    ServiceTier,
    TemplateKwargs,
    Verbosity,
    Wire,
    parse,
    text_or_list,
)
from app.wire.errors import NOT_SUPPORTED, ApiError, invalid_request
from app.wire.formats import StructuredOutputs, TextFormat
from app.wire.items import CompactInput, Input, InputItem, MessageItem, ResolvedItem
from app.wire.prompt_cache import CacheOptions, ResponseCacheOptions, Retention
from app.wire.tools import Functions, ToolChoice

LOGPROBS: Final = "message.output_text.logprobs"
SEALED_REASONING: Final = "reasoning.encrypted_content"
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
]
INCLUDABLE: frozenset[str] = frozenset(get_args(Includable))
"""What a response can be asked to have besides; a picture's URL is always there."""
_ELSEWHERE: Final = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""What OpenAI's can be asked for as well."""


def _served(value: object) -> object:
    if value in _ELSEWHERE:
        raise PydanticCustomError("unsupported_value", NOT_SUPPORTED)
    return value


class PromptReference(Wire):
    """A registered system prompt of the tenant, by name, with the values of its variables."""

    id: Identifier
    version: Identifier | None = None
    variables: dict[str, str] | None = None


class TextOptions(Wire):
    """Options of the text output."""

    format: TextFormat | None = None
    verbosity: Verbosity = None


class ReasoningOptions(Wire):
    """How to reason. No summary is made: reasoning is told as it is."""

    wishes: ClassVar[Mapping[str, object]] = {"summary": None, "generate_summary": None}

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Wire):
    """Options of a stream: `include_obfuscation` pads its deltas with text."""

    include_obfuscation: bool | None = None


class ConversationReference(Wire):
    """A conversation, by id."""

    id: Identifier


class CreateBody(SamplingFields):
    """The body of `POST /v1/responses`."""

    own_words: ClassVar[Mapping[str, str]] = {
        "messages": "input",
        "system": "instructions",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "stop_sequences": "stop",
    }

    model: str | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: Identifier | None = None
    prompt: PromptReference | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: (
        Annotated[list[Annotated[Includable, BeforeValidator(_served)]], Field(fail_fast=True)]
        | None
    ) = None
    metadata: Metadata | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    structured_outputs: StructuredOutputs | None = None

    tools: Functions | None = None
    tool_choice: ToolChoice | None = None
    chat_template_kwargs: TemplateKwargs = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    generate: bool | None = None
    conversation: (
        Annotated[
            Annotated[Identifier, Tag("@text")] | Annotated[ConversationReference, Tag("@list")],
            Discriminator(text_or_list),
        ]
        | None
    ) = None
    context_management: DeclinedList = None
    max_tool_calls: Declined = None
    moderation: Declined = None
    prompt_cache_options: ResponseCacheOptions | None = None
    prompt_cache_retention: Retention | None = None
    reasoning: ReasoningOptions | None = None
    access_programs: Declined = None
    image: Declined = None

    def includes(self, what: Includable) -> bool:
        """Whether the answer is to have that besides."""
        return self.include is not None and what in self.include

    @property
    def generates(self) -> bool:
        """Whether there is to be an answer: else the prompt is computed, and nothing more."""
        options = self.prompt_cache_options
        return self.generate is not False and not (options and options.prewarm)

    @property
    def effort_wish(self) -> EffortWish:
        """See `Wire`."""
        effort = self.reasoning and self.reasoning.effort
        return ("reasoning.effort", effort) if effort else None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it belongs to, whichever form it came in."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def items(self) -> list[InputItem]:
        """The input as items; a bare string is one user message."""
        if isinstance(self.input, str):
            return [MessageItem.model_construct(role="user", content=self.input)]
        return self.input


class CompactBody(Wire):
    """The body of `POST /v1/responses/compact`."""

    model: Identifier
    input: CompactInput | None = None
    previous_response_id: Identifier | None = None
    instructions: str | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Retention | None = None
    service_tier: ServiceTier = None

    @property
    def items(self) -> list[ResolvedItem]:
        """The input as items; none where a previous response is compacted as it is."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input or []


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
