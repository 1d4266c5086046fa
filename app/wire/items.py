"""The items that a request brings, to a response or to a conversation: messages, calls, results,
reasoning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from app.wire.common import (
    MAX_ITEMS,
    CacheControl,
    Declined,
    DeclinedList,
    Identifier,
    Metadata,
    TextOr,
    Wire,
    at_most,
    by_type,
    type_tag,
)
from app.wire.parts.pictures import InputImage, texts_of
from app.wire.prompt_cache import MarkedPart
from app.wire.tools import MAX_FUNCTIONS, CallId, FunctionName


class InputText(MarkedPart):
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
    Annotated[InputText, Tag("@input_text")]
    | Annotated[OutputText, Tag("@output_text")]
    | Annotated[InputImage, Tag("@input_image")],
    by_type(
        "only text and images are served, no files or audio: parts of type input_text, output_text "
        "and input_image"
    ),
]


class MessageItem(Wire):
    """One message of the conversation; output items of earlier responses fit unchanged."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOr[Annotated[list[Part], at_most(MAX_ITEMS)]]
    id: Identifier | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    @property
    def text(self) -> str:
        """The texts of the content as one string."""
        return texts_of(self.content)


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
    content: Annotated[list[ReasoningPart], at_most(MAX_ITEMS)] | None = None
    encrypted_content: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        return "".join(part.text for part in self.content or ())


class FunctionCallItem(Wire):
    """A call that the model has made; an output item of an earlier response fits unchanged."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: str
    id: CallId | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    namespace: Declined = None
    caller: Declined = None


class CustomToolCallItem(Wire):
    """A call of a custom tool; an output item of an earlier response fits unchanged."""

    type: Literal["custom_tool_call"]
    call_id: CallId
    name: FunctionName
    input: str
    id: CallId | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    namespace: Declined = None
    caller: Declined = None


class ResultText(MarkedPart):
    """A text part of a result."""

    type: Literal["input_text"]
    text: str


ResultPart = Annotated[
    Annotated[ResultText, Tag("@input_text")] | Annotated[InputImage, Tag("@input_image")],
    by_type("only text and images are served, no files: parts of type input_text and input_image"),
]


class ResultItem(Wire):
    """The result of a call."""

    call_id: CallId
    output: TextOr[Annotated[list[ResultPart], at_most(MAX_FUNCTIONS)]]
    id: CallId | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    name: str | None = None
    namespace: Declined = None
    caller: Declined = None


class FunctionCallOutputItem(ResultItem):
    """The result of a function's call."""

    type: Literal["function_call_output"]


class CustomToolCallOutputItem(ResultItem):
    """The result of a custom tool's call."""

    type: Literal["custom_tool_call_output"]


class ItemReference(Wire):
    """An item of an earlier response, its input or its output, by id."""

    type: Literal["item_reference"] | None = None
    id: Identifier


def _item_tag(value: Any) -> str:
    if isinstance(value, dict) and value.get("type") is None and value.keys() <= {"id", "type"}:
        return "@item_reference"
    return type_tag(value, "message")


_item = by_type(
    "only items of type message, function_call, function_call_output, custom_tool_call, "
    "custom_tool_call_output, reasoning, compaction and item_reference are served",
    tag=_item_tag,
)
_Resolved = (
    Annotated[MessageItem, Tag("@message")]
    | Annotated[CompactionItem, Tag("@compaction")]
    | Annotated[ReasoningItem, Tag("@reasoning")]
    | Annotated[FunctionCallItem, Tag("@function_call")]
    | Annotated[FunctionCallOutputItem, Tag("@function_call_output")]
    | Annotated[CustomToolCallItem, Tag("@custom_tool_call")]
    | Annotated[CustomToolCallOutputItem, Tag("@custom_tool_call_output")]
)
ResolvedItem = Annotated[_Resolved, _item]
InputItem = Annotated[_Resolved | Annotated[ItemReference, Tag("@item_reference")], _item]


class ResolvedInput(Wire):
    """An item as it was kept."""

    item: ResolvedItem


Input = TextOr[Annotated[list[InputItem], at_most(MAX_ITEMS)]]
CompactInput = TextOr[Annotated[list[ResolvedItem], at_most(MAX_ITEMS, least=1)]]
MAX_NEW_ITEMS = 20
"""Items that are added to a conversation at once, at most, as OpenAI has it."""

NewItems = Annotated[list[ResolvedItem], at_most(MAX_NEW_ITEMS)]


class ConversationBody(Wire):
    """The body of `POST /v1/conversations`."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class MetadataBody(Wire):
    """The body that changes the metadata of a conversation, or of a stored chat completion."""

    metadata: Metadata | None


class ItemsBody(Wire):
    """The body of `POST /v1/conversations/{conversation_id}/items`."""

    items: Annotated[list[ResolvedItem], at_most(MAX_NEW_ITEMS, least=1)]


class KeptItems(Wire):
    """Items as they were kept."""

    items: list[ResolvedItem]
