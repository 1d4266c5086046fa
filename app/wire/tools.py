"""Functions on the wire: how both APIs describe them, and say which of them may be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from app.wire.bounded_json import is_too_deep
from app.wire.common import Declined, DeclinedFlag, TextOr, Wire, at_most, by_type, type_tag
from app.wire.errors import NOT_SUPPORTED, invalid_request
from app.wire.functions import Function, Tools
from app.wire.parts.pictures import InputImage
from app.wire.prompt_cache import MarkedPart

MAX_FUNCTIONS = 128
"""Functions of one request, at most, as OpenAI has it."""
CallId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    if is_too_deep(value):
        raise PydanticCustomError("invalid_value", "it is nested too deeply")
    return value


Schema = Annotated[dict[str, Any], AfterValidator(_shallow)]


def _word_or_type(value: Any) -> str:
    return "@text" if isinstance(value, str) else type_tag(value)


class FunctionFields(Wire):
    """A function; with `strict` the arguments of its calls follow the schema."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    _function: Function = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        """Measure it here, where long bodies hold nobody up."""
        strict = self.strict is True
        function = Function(self.name, self.description, self.parameters, strict=strict)
        self._function = function.measured

    @property
    def function(self) -> Function:
        """It in words of no API."""
        return self._function


def _direct(value: object) -> object:
    if value in (None, [], ["direct"]):
        return value
    raise PydanticCustomError("unsupported_value", NOT_SUPPORTED)


class FunctionTool(FunctionFields):
    """A function as the Responses API describes it."""

    type: Literal["function"]
    output_schema: Schema | None = None
    allowed_callers: Annotated[Any, AfterValidator(_direct)] = None
    defer_loading: DeclinedFlag = None
    is_async: DeclinedFlag = Field(None, alias="async")


class ChatTool(Wire):
    """A function as chat completions describe it."""

    type: Literal["function"]
    function: FunctionFields


_tool = by_type("only tools of type function are served")
_all = at_most(MAX_FUNCTIONS)

Functions = Annotated[list[Annotated[Annotated[FunctionTool, Tag("@function")], _tool]], _all]
ChatTools = Annotated[list[Annotated[Annotated[ChatTool, Tag("@function")], _tool]], _all]


class NamedFunction(Wire):
    """One function, by its name."""

    type: Literal["function"]
    name: FunctionName


class _Name(Wire):
    name: FunctionName


class ChatNamedFunction(Wire):
    """One function as chat completions name it."""

    type: Literal["function"]
    function: _Name

    @property
    def name(self) -> str:
        """Its name."""
        return self.function.name


Mode = Literal["auto", "required"]


class AllowedTools(Wire):
    """Some of the functions, any of which may be called."""

    type: Literal["allowed_tools"]
    mode: Mode
    tools: Annotated[list[NamedFunction], at_most(MAX_FUNCTIONS, least=1)]


class _ChatAllowed(Wire):
    mode: Mode
    tools: Annotated[list[ChatNamedFunction], at_most(MAX_FUNCTIONS, least=1)]


class ChatAllowedTools(Wire):
    """The same in chat completions."""

    type: Literal["allowed_tools"]
    allowed_tools: _ChatAllowed

    @property
    def mode(self) -> Mode:
        """Whether one of them has to be called."""
        return self.allowed_tools.mode

    @property
    def tools(self) -> list[ChatNamedFunction]:
        """The functions."""
        return self.allowed_tools.tools


def _spelled(value: Any) -> Any:
    """A word, also where it comes as an object that has nothing else."""
    is_word = isinstance(value, dict) and value.keys() == {"type"} and value["type"] in _WORDS
    return value["type"] if is_word else value


_WORDS = ("none", "auto", "required")
_Word = Annotated[Literal["none", "auto", "required"], Tag("@text")]
_choice = by_type(
    'it is "none", "auto", "required", a function or allowed_tools', tag=_word_or_type
)
ToolChoice = Annotated[
    _Word
    | Annotated[NamedFunction, Tag("@function")]
    | Annotated[AllowedTools, Tag("@allowed_tools")],
    _choice,
    BeforeValidator(_spelled),
]
ChatToolChoice = Annotated[
    _Word
    | Annotated[ChatNamedFunction, Tag("@function")]
    | Annotated[ChatAllowedTools, Tag("@allowed_tools")],
    _choice,
    BeforeValidator(_spelled),
]


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


class ResultText(MarkedPart):
    """A text part of a result."""

    type: Literal["input_text"]
    text: str


ResultPart = Annotated[
    Annotated[ResultText, Tag("@input_text")] | Annotated[InputImage, Tag("@input_image")],
    by_type("only text and images are served, no files: parts of type input_text and input_image"),
]


class FunctionCallOutputItem(Wire):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: TextOr[Annotated[list[ResultPart], _all]]
    id: CallId | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    name: str | None = None
    namespace: Declined = None
    caller: Declined = None


def asked_tools(
    functions: Sequence[FunctionFields],
    choice: ToolChoice | ChatToolChoice | None,
    parallel: bool | None,
) -> Tools:
    """What a request says of functions. Raises `ApiError` naming a field that needs another."""
    described = [one.function for one in functions]
    names = [one.name for one in described]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid_request(f"There are two functions '{name}'.", f"tools[{index}]")
    parallel = parallel is not False
    if choice is None or isinstance(choice, str):
        mode = choice or "auto"
    else:
        if isinstance(choice, NamedFunction | ChatNamedFunction):
            mode, parallel, asked = "required", False, [choice.name]
        else:
            mode, asked = choice.mode, [one.name for one in choice.tools]
        if missing := [name for name in asked if name not in names]:
            message = f"There is no function '{missing[0]}' in 'tools'."
            raise invalid_request(message, "tool_choice")
        names = asked
    if mode == "required" and not names:
        raise invalid_request("There are no 'tools' to choose from.", "tool_choice")
    return Tools(described, [] if mode == "none" else names, parallel, mode == "required")
