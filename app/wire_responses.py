"""What a client sends to the Responses API: create bodies, input items, WebSocket messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from app.wire import (
    Declined,
    DeclinedFlag,
    DeclinedList,
    Identifier,
    SamplingFields,
    Wire,
    declining,
)

LOGPROBS = "message.output_text.logprobs"


def _type_tag(value: Any, default: str = "") -> str:
    kind = (
        value.get("type", default) if isinstance(value, dict) else getattr(value, "type", default)
    )
    return f"@{kind}"


class InputText(Wire):
    """A text part of a user, system or developer message."""

    type: Literal["input_text"]
    text: str


class OutputText(Wire):
    """A text part of an assistant message, as a response carried it."""

    type: Literal["output_text"]
    text: str
    annotations: DeclinedList = None
    logprobs: list[dict[str, Any]] | None = None


Part = Annotated[
    Annotated[InputText, Tag("@input_text")] | Annotated[OutputText, Tag("@output_text")],
    Discriminator(
        _type_tag,
        custom_error_type="unsupported_value",
        custom_error_message="only text is served: parts of type input_text and output_text",
    ),
]


def _text_or_list(value: Any) -> str:
    return "@text" if isinstance(value, str) else "@list"


Content = Annotated[
    Annotated[str, Tag("@text")] | Annotated[list[Part], Tag("@list")],
    Discriminator(_text_or_list),
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


def _checked_item(value: Any) -> Any:
    if _type_tag(value, "message") != "@message":
        raise PydanticCustomError("unsupported_value", "only items of type message are served")
    return value


InputItem = Annotated[MessageItem, BeforeValidator(_checked_item)]


class PromptReference(Wire):
    """A registered system prompt of the tenant, by name, with the values of its variables."""

    id: Identifier
    version: Identifier | None = None
    variables: dict[str, str] | None = None


class TextFormat(Wire):
    """Plain text is the one output format."""

    type: Literal["text"]


class TextOptions(Wire):
    """Options of the text output; `verbosity` is declined unless it is the default."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, AfterValidator(declining("medium"))] = None


class StreamOptions(Wire):
    """Options of an SSE stream; events are never padded."""

    include_obfuscation: DeclinedFlag = None


class CreateBody(SamplingFields):
    """The body of `POST /v1/responses`."""

    model: str | None = None
    input: Annotated[
        Annotated[str, Tag("@text")]
        | Annotated[list[InputItem], Field(min_length=1), Tag("@list")],
        Discriminator(_text_or_list),
    ]
    instructions: str | None = None
    previous_response_id: Identifier | None = None
    prompt: PromptReference | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None

    tools: DeclinedList = None
    tool_choice: Annotated[Any, AfterValidator(declining("auto", "none"))] = None
    truncation: Annotated[Any, AfterValidator(declining("disabled"))] = None
    background: DeclinedFlag = None
    generate: Annotated[Any, AfterValidator(declining(True))] = None
    conversation: Declined = None
    context_management: DeclinedList = None
    max_tool_calls: Declined = None
    moderation: Declined = None
    prompt_cache_options: Declined = None
    prompt_cache_retention: Annotated[Any, AfterValidator(declining("in_memory"))] = None
    reasoning: Declined = None
    access_programs: Declined = None
    image: Declined = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's text carries log-probabilities."""
        return self.include is not None and LOGPROBS in self.include

    @property
    def items(self) -> list[MessageItem]:
        """The input as items; a bare string is one user message."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input


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
