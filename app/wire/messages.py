"""Anthropic's Messages API on the wire: what comes in.

What it has and this service has not (server tools, documents, batches, files by URL) is refused by
its name, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.wire.common import (
    MAX_ITEMS,
    MAX_STOP_CHARACTERS,
    CacheControl,
    Declined,
    DeclinedFlag,
    DeclinedList,
    Declining,
    EffortWish,
    EndUser,
    Identifier,
    SamplingFields,
    TextOr,
    Wire,
    at_most,
    by_type,
    type_tag,
)
from app.wire.parts.pictures import ImageBlock
from app.wire.tools import MAX_FUNCTIONS, CallId, FunctionFields, Schema

_MAX_STOP_SEQUENCES = 16
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
"""What coding agents ask for where nothing is to be left out."""
_ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]


class MarkedBlock(Wire):
    """A block that may end a prefix which later prompts will begin with."""

    cache_control: CacheControl | None = None


class TextBlock(MarkedBlock):
    """A text of a system prompt, a turn or a result."""

    type: Literal["text"]
    text: str
    citations: DeclinedList = None


class ThinkingBlock(Wire):
    """What a model reasoned; where it was not shown, its `signature` holds it."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedBlock(Wire):
    """What another service's model reasoned, which nobody here can read."""

    type: Literal["redacted_thinking"]
    data: str
    wishes: ClassVar[Mapping[str, object]] = {"data": ""}


class ToolUseBlock(MarkedBlock):
    """A call that the model has made."""

    type: Literal["tool_use"]
    id: CallId
    name: _ToolName
    input: Schema
    caller: Annotated[Any, Declining({"type": "direct"})] = None
    toolset_name: Declined = None


_ResultPart = Annotated[
    Annotated[TextBlock, Tag("@text")] | Annotated[ImageBlock, Tag("@image")],
    by_type(
        "only text and images are served in results, no documents: blocks of type text and image"
    ),
]


_SystemPart = Annotated[
    Annotated[TextBlock, Tag("@text")],
    by_type("only text is served in a system prompt: blocks of type text"),
]


class ToolResultBlock(MarkedBlock):
    """The result of a call, or how it failed."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: TextOr[Annotated[list[_ResultPart], at_most(MAX_ITEMS)]] | None = None
    is_error: bool | None = None


Block = TextBlock | ImageBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
_Block = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ImageBlock, Tag("@image")]
    | Annotated[ThinkingBlock, Tag("@thinking")]
    | Annotated[RedactedBlock, Tag("@redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("@tool_use")]
    | Annotated[ToolResultBlock, Tag("@tool_result")],
    by_type(
        "only text and images are served, no documents or server tools: blocks of type text, "
        "image, thinking, redacted_thinking, tool_use and tool_result"
    ),
]


class Turn(Wire):
    """What one side says, or the system between turns."""

    role: Literal["user", "assistant", "system"]
    content: TextOr[Annotated[list[_Block], at_most(MAX_ITEMS)]]

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        if isinstance(self.content, str):
            return [TextBlock.model_construct(type="text", text=self.content)]
        return self.content


class CustomTool(FunctionFields):
    """A function; with `strict` the input of its calls follows the schema.

    Calls are streamed as they come, `eager_input_streaming` or not.
    """

    type: Literal["custom"] | None = None
    name: _ToolName
    parameters: Schema = Field(alias="input_schema")
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    input_examples: DeclinedList = None
    defer_loading: DeclinedFlag = None
    allowed_callers: Annotated[Any, Declining([], ["direct"])] = None


def _tool_tag(value: Any) -> str:
    is_plain = isinstance(value, dict) and value.get("type") is None
    return "@custom" if is_plain else type_tag(value)


_Tool = Annotated[
    Annotated[CustomTool, Tag("@custom")],
    by_type("only tools of type custom are served, none of a server's own", tag=_tool_tag),
]


class MessageToolChoice(Wire):
    """Which tools may be, or have to be, called; `any` is some of them."""

    type: Literal["auto", "any", "tool", "none"]
    name: _ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_one(self) -> MessageToolChoice:
        if (self.name is None) == (self.type == "tool"):
            raise PydanticCustomError("invalid_value", "type tool, and no other, has a 'name'")
        return self


class Thinking(Wire):
    """Whether to reason before the answer, in so many tokens, and whether it is shown."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1024)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _has_its_budget(self) -> Thinking:
        if (self.budget_tokens is None) == (self.type == "enabled"):
            message = "type enabled, and no other, has 'budget_tokens'"
            raise PydanticCustomError("invalid_value", message)
        return self


class JsonOutput(Wire):
    """An answer that is JSON, valid by a schema."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


MessageEffort = Literal["low", "medium", "high", "xhigh", "max"]


class OutputConfig(Wire):
    """How much work an answer is worth, and what it is held to."""

    effort: MessageEffort | None = None
    format: JsonOutput | None = None
    task_budget: Declined = None


class MessageMetadata(Wire):
    """On whose behalf a request is made."""

    user_id: EndUser | None = None


class CountBody(Wire):
    """The body of `POST /v1/messages/count_tokens`."""

    own_words: ClassVar[Mapping[str, str]] = {
        "input": "messages",
        "instructions": "system",
        "max_completion_tokens": "max_tokens",
        "max_output_tokens": "max_tokens",
        "stop": "stop_sequences",
        "response_format": "output_config.format",
    }

    model: Identifier
    messages: Annotated[list[Turn], at_most(MAX_ITEMS, least=1)]
    system: TextOr[Annotated[list[_SystemPart], at_most(MAX_ITEMS)]] | None = None
    tools: Annotated[list[_Tool], at_most(MAX_FUNCTIONS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonOutput | None = None
    cache_control: CacheControl | None = None
    context_management: Annotated[Any, Declining({"edits": []}, _KEEPS_ALL)] = None
    mcp_servers: DeclinedList = None
    billing_policy: Declined = None
    compaction: Declined = None
    speed: Annotated[Any, Declining("standard")] = None

    @property
    def effort_wish(self) -> EffortWish:
        """See `Wire`."""
        effort = self.output_config and self.output_config.effort
        if effort:
            return "output_config.effort", effort
        is_asked = self.thinking is not None and self.thinking.type != "disabled"
        return ("thinking", "medium") if is_asked else None


class MessagesBody(CountBody):
    """The body of `POST /v1/messages`; with 0 `max_tokens` nothing but the prompt is computed."""

    max_tokens: Annotated[int, Field(ge=0)]
    metadata: MessageMetadata | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
            at_most(_MAX_STOP_SEQUENCES),
        ]
        | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: Declined = None
    diagnostics: Declined = None
    fallbacks: DeclinedList = None
    fallback_credit_token: Declined = None
    thread: Declined = None
    inference_geo: Declined = None

    @property
    def sampling(self) -> SamplingFields:
        """How to sample, and on whose behalf, in words of no API."""
        return SamplingFields.model_construct(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences,
            user=None if self.metadata is None else self.metadata.user_id,
        )
