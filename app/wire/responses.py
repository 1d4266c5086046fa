"""What a client sends to the Responses API: create bodies, input items, WebSocket messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag

from app.wire.common import (
    MAX_ITEMS,
    CacheControl,
    CacheKey,
    Declined,
    DeclinedList,
    Effort,
    Identifier,
    Metadata,
    SamplingFields,
    ServiceTier,
    Verbosity,
    Wire,
    declining,
    decode_json,
    parse,
    text_or_list,
)
from app.wire.errors import ApiError, invalid_request
from app.wire.formats import StructuredOutputs, TextFormat
from app.wire.tools import FunctionCallItem, FunctionCallOutputItem, Functions, ToolChoice

LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
INCLUDABLE: frozenset[str] = frozenset(get_args(Includable))
"""What a response can be asked to have besides."""


def _type_tag(value: Any, default: str = "") -> str:
    kind = (
        value.get("type", default) if isinstance(value, dict) else getattr(value, "type", default)
    )
    return f"@{kind}"


class InputText(Wire):
    """A text part of a user, system or developer message."""

    type: Literal["input_text"]
    text: str
    cache_control: CacheControl | None = None


class OutputText(Wire):
    """A text part of an assistant message, as a response carried it."""

    type: Literal["output_text"]
    text: str
    annotations: DeclinedList = None
    logprobs: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    cache_control: CacheControl | None = None


Part = Annotated[
    Annotated[InputText, Tag("@input_text")] | Annotated[OutputText, Tag("@output_text")],
    Discriminator(
        _type_tag,
        custom_error_type="unsupported_value",
        custom_error_message=(
            "only text is served, no images, files or audio: parts of type input_text and "
            "output_text"
        ),
    ),
]


Content = Annotated[
    Annotated[str, Tag("@text")]
    | Annotated[list[Part], Field(fail_fast=True, max_length=MAX_ITEMS), Tag("@list")],
    Discriminator(text_or_list),
]


class MessageItem(Wire):
    """One message of the conversation; output items of earlier responses fit unchanged."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Identifier | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class CompactionItem(Wire):
    """A conversation's sealed summary, as `POST /v1/responses/compact` returned it."""

    type: Literal["compaction"]
    encrypted_content: str
    id: Identifier | None = None


class ReasoningPart(Wire):
    """A text of a reasoning item."""

    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(Wire):
    """What a model reasoned before an answer, here or elsewhere."""

    type: Literal["reasoning"]
    id: Identifier | None = None
    summary: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    content: Annotated[list[ReasoningPart], Field(fail_fast=True, max_length=MAX_ITEMS)] | None = (
        None
    )
    encrypted_content: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        return "".join(part.text for part in self.content or ())


class ItemReference(Wire):
    """An item of an earlier response, its input or its output, by id."""

    type: Literal["item_reference"] | None = None
    id: Identifier


def _item_tag(value: Any) -> str:
    if isinstance(value, dict) and value.get("type") is None and value.keys() <= {"id", "type"}:
        return "@item_reference"
    return _type_tag(value, "message")


_item = Discriminator(
    _item_tag,
    custom_error_type="unsupported_value",
    custom_error_message=(
        "only items of type message, function_call, function_call_output, reasoning, compaction "
        "and item_reference are served"
    ),
)
ResolvedItem = Annotated[
    Annotated[MessageItem, Tag("@message")]
    | Annotated[CompactionItem, Tag("@compaction")]
    | Annotated[ReasoningItem, Tag("@reasoning")]
    | Annotated[FunctionCallItem, Tag("@function_call")]
    | Annotated[FunctionCallOutputItem, Tag("@function_call_output")],
    _item,
]
InputItem = Annotated[
    Annotated[MessageItem, Tag("@message")]
    | Annotated[CompactionItem, Tag("@compaction")]
    | Annotated[ReasoningItem, Tag("@reasoning")]
    | Annotated[FunctionCallItem, Tag("@function_call")]
    | Annotated[FunctionCallOutputItem, Tag("@function_call_output")]
    | Annotated[ItemReference, Tag("@item_reference")],
    _item,
]


class ResolvedInput(Wire):
    """An item as it was kept."""

    item: ResolvedItem


Input = Annotated[
    Annotated[str, Tag("@text")]
    | Annotated[
        list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS), Tag("@list")
    ],
    Discriminator(text_or_list),
]


CompactInput = Annotated[
    Annotated[str, Tag("@text")]
    | Annotated[
        list[ResolvedItem], Field(fail_fast=True, min_length=1, max_length=MAX_ITEMS), Tag("@list")
    ],
    Discriminator(text_or_list),
]


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

    model: str | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: Identifier | None = None
    prompt: PromptReference | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[Includable], Field(fail_fast=True)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    structured_outputs: StructuredOutputs | None = None

    tools: Functions | None = None
    tool_choice: ToolChoice | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    generate: Annotated[Any, AfterValidator(declining(True))] = None
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
    prompt_cache_options: Declined = None
    prompt_cache_retention: Annotated[Any, AfterValidator(declining("in_memory"))] = None
    reasoning: ReasoningOptions | None = None
    access_programs: Declined = None
    image: Declined = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's text carries log-probabilities."""
        return self.include is not None and LOGPROBS in self.include

    @property
    def effort_wish(self) -> tuple[str, Effort] | None:
        """See `Wire`."""
        effort = self.reasoning and self.reasoning.effort
        return ("reasoning.effort", effort) if effort else None

    @property
    def wants_sealed_reasoning(self) -> bool:
        """Whether reasoning items carry what they hold encrypted, too."""
        return self.include is not None and SEALED_REASONING in self.include

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it belongs to, whichever form it came in."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def items(self) -> list[InputItem]:
        """The input as items; a bare string is one user message."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input


class CompactBody(Wire):
    """The body of `POST /v1/responses/compact`."""

    model: Identifier
    input: CompactInput | None = None
    previous_response_id: Identifier | None = None
    instructions: str | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_options: Declined = None
    prompt_cache_retention: Annotated[Any, AfterValidator(declining("in_memory"))] = None
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
    stream: Annotated[Any, AfterValidator(declining(True))] = None


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
