"""The chat completions API on the wire: what comes in and what goes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import AfterValidator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.wire.common import (
    MAX_ITEMS,
    CacheControl,
    Declined,
    DeclinedList,
    Declining,
    Effort,
    EffortWish,
    Identifier,
    Metadata,
    PromptLogprobsField,
    SamplingFields,
    TemplateKwargs,
    TextOr,
    Tier,
    Verbosity,
    Wire,
    at_most,
    by_type,
)
from app.wire.errors import NOT_SUPPORTED
from app.wire.events import EncodedLogprob, Sent
from app.wire.formats import ResponseFormat, StructuredOutputs
from app.wire.functions import FunctionCall
from app.wire.parts.pictures import ChatImagePart, texts_of
from app.wire.prompt_cache import CacheOptions, MarkedPart, Retention
from app.wire.tools import MAX_FUNCTIONS, CallId, ChatToolChoice, ChatTools, FunctionName

MAX_SEQUENCES = 16
"""Lines of one request, sampled or searched, at most."""


class ChatTextPart(MarkedPart):
    """A text part of a message."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


Part = Annotated[
    Annotated[ChatTextPart, Tag("@text")] | Annotated[ChatImagePart, Tag("@image_url")],
    by_type("only text and images are served, no files or audio: parts of type text and image_url"),
]

Content = TextOr[Annotated[list[Part], at_most(MAX_ITEMS)]]


class CalledFunction(Wire):
    """A function and the arguments that it is called with, as JSON."""

    name: FunctionName
    arguments: str


class CalledText(Wire):
    """A custom tool and the text that it is called with."""

    name: FunctionName
    input: str


class ToolCall(Wire):
    """A call of a function that the model has made."""

    id: CallId
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None

    @property
    def call(self) -> FunctionCall:
        """It in words of no API."""
        return FunctionCall(self.id, self.function.name, self.function.arguments)


class CustomCall(Wire):
    """A call of a custom tool that the model has made."""

    id: CallId
    type: Literal["custom"]
    custom: CalledText
    index: int | None = None

    @property
    def call(self) -> FunctionCall:
        """It in words of no API."""
        return FunctionCall.of_text(self.id, self.custom.name, self.custom.input)


AnyCall = Annotated[
    Annotated[ToolCall, Tag("@function")] | Annotated[CustomCall, Tag("@custom")],
    by_type("only calls of type function and custom are served"),
]


def _nothing_said(value: object) -> object:
    members = value.values() if isinstance(value, dict) else [value]
    if any(member is not None for member in members):
        raise PydanticCustomError("unsupported_value", NOT_SUPPORTED)
    return value


NothingSaid = Annotated[Any, AfterValidator(_nothing_said)]
"""LiteLLM's: whatever of an answer's message it had no name for, such as `"refusal": null`."""


class ChatMessage(Wire):
    """One message of the conversation; an answer's message fits unchanged.

    An assistant's that calls functions needs no content. One of role "tool" is a call's result.
    `reasoning_content`, which other open servers have as well, is what an assistant reasoned.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[AnyCall], at_most(MAX_FUNCTIONS)] | None = None
    tool_call_id: CallId | None = None
    name: Identifier | None = None
    reasoning_content: str | None = None
    refusal: Declined = None
    audio: Declined = None
    annotations: DeclinedList = None
    function_call: Declined = None
    provider_specific_fields: NothingSaid = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("invalid_value", "only an assistant's 'content' can be null")
        return self

    @property
    def text(self) -> str:
        """The texts of the content as one string."""
        return texts_of(self.content)


class ChatStreamOptions(Wire):
    """`include_usage` adds a last chunk with the token counts, and `continuous_usage_stats`, an
    extension, those so far to every chunk. `include_obfuscation` pads chunks with text.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


def _early_stopping(value: object) -> object:
    if value is None or isinstance(value, bool) or value == "never":
        return value
    raise PydanticCustomError("invalid_value", 'expected true, false or "never"')


class ChatBody(SamplingFields):
    """The body of `POST /v1/chat/completions`.

    `best_of` and the fields of beam search are extensions, under the names that other open servers
    and `transformers` use; `app.chat.choices` says what goes together.
    """

    own_words: ClassVar[Mapping[str, str]] = {
        "input": "messages",
        "prompt": "messages",
        "instructions": "messages",
        "max_output_tokens": "max_completion_tokens",
        "stop_sequences": "stop",
    }

    model: Identifier
    messages: Annotated[list[ChatMessage], at_most(MAX_ITEMS, least=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: PromptLogprobsField = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    num_beams: Annotated[int, Field(ge=2, le=MAX_SEQUENCES)] | None = None
    length_penalty: Annotated[float, Field(ge=-5, le=5)] | None = None
    early_stopping: Annotated[Any, AfterValidator(_early_stopping)] = None

    store: bool | None = None
    metadata: Metadata | None = None
    modalities: Annotated[Any, Declining(["text"])] = None
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice | None = None
    chat_template_kwargs: TemplateKwargs = None
    functions: DeclinedList = None
    function_call: Annotated[Any, Declining("auto", "none")] = None
    audio: Declined = None
    moderation: Declined = None
    prediction: Declined = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Retention | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity = None
    web_search_options: Declined = None

    @property
    def effort_wish(self) -> EffortWish:
        """See `Wire`."""
        return ("reasoning_effort", self.reasoning_effort) if self.reasoning_effort else None


class PromptTokensDetails(Sent, kw_only=True):
    """`cached_tokens` of the prompt were found in the cache, `cache_write_tokens` are new there."""

    cached_tokens: int
    cache_write_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(Sent, kw_only=True):
    """`reasoning_tokens` are those of `reasoning_content`."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class ChatUsage(Sent, kw_only=True):
    """Token counts of one completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = msgspec.field(
        default_factory=CompletionTokensDetails
    )


class ChoiceLogprobs(Sent, kw_only=True):
    """Log-probabilities of the tokens of a choice or chunk."""

    content: list[EncodedLogprob]
    refusal: None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class SentFunction(Sent, kw_only=True):
    """A function that is called."""

    name: str
    arguments: str


class SentCall(Sent, kw_only=True, tag_field="type", tag="function"):
    """A call."""

    id: str
    function: SentFunction


class SentTool(Sent, kw_only=True):
    """A custom tool that is called."""

    name: str
    input: str


class SentCustomCall(Sent, kw_only=True, tag_field="type", tag="custom"):
    """A call of a custom tool."""

    id: str
    custom: SentTool


class AnswerMessage(Sent, kw_only=True):
    """The assistant's message: what is said, and the functions that are called."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    refusal: None = None
    tool_calls: list[SentCall | SentCustomCall] | UnsetType = UNSET


class Choice(Sent, kw_only=True):
    """One of the answers of a completion.

    Hypotheses of a beam search come best first, with their `score`: the sum of the tokens'
    log-probabilities over the length to the power of `length_penalty`.
    """

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason
    score: float | UnsetType = UNSET


class ChatCompletion(Sent, kw_only=True):
    """The answer to a request without `stream`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: ChatUsage
    service_tier: Tier
    prompt_logprobs: list[msgspec.Raw | None] | UnsetType = UNSET


class ChunkChoice(Sent, kw_only=True):
    """What one chunk adds to one answer; `delta` holds only the keys that are new."""

    index: int
    delta: dict[str, Any]
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Sent, kw_only=True):
    """One chunk of a streamed completion.

    Where the usage is asked for, all chunks have the field, and the last one its value, or each
    one that so far.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    service_tier: Tier
    usage: ChatUsage | UnsetType | None = UNSET
    obfuscation: str | UnsetType = UNSET
