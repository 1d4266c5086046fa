"""Functions and custom tools on the wire: how both APIs describe them, and say which of them may be
called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StringConstraints, Tag
from pydantic_core import PydanticCustomError

from app.wire.bounded_json import is_too_deep
from app.wire.common import DeclinedFlag, Wire, at_most, by_type, type_tag
from app.wire.errors import NOT_SUPPORTED, invalid_request
from app.wire.functions import TEXT_PARAMETERS, Function, Tools
from engine.api import Grammar

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


class _Callable(Wire):
    """Who may call a tool, and when: the model, at once."""

    allowed_callers: Annotated[Any, AfterValidator(_direct)] = None
    defer_loading: DeclinedFlag = None
    is_async: DeclinedFlag = Field(None, alias="async")


class FunctionTool(FunctionFields, _Callable):
    """A function as the Responses API describes it."""

    type: Literal["function"]
    output_schema: Schema | None = None


class ChatTool(Wire):
    """A function as chat completions describe it."""

    type: Literal["function"]
    function: FunctionFields

    @property
    def asked(self) -> Describing:
        """It in words of no API."""
        return self.function


class FreeInput(Wire):
    """Any text."""

    type: Literal["text"]


class TextGrammar(Wire):
    """A grammar in Lark, whose texts are derived from `start`, or a regular expression, which
    matches a text as a whole.
    """

    syntax: Literal["lark", "regex"]
    definition: str


class GrammarInput(TextGrammar):
    """Texts that a grammar derives, as the Responses API has it."""

    type: Literal["grammar"]


class ChatGrammarInput(Wire):
    """The same as chat completions have it."""

    type: Literal["grammar"]
    grammar: TextGrammar


_input = by_type("formats of custom tools are text and grammar")
InputFormat = Annotated[
    Annotated[FreeInput, Tag("@text")] | Annotated[GrammarInput, Tag("@grammar")], _input
]
ChatInputFormat = Annotated[
    Annotated[FreeInput, Tag("@text")] | Annotated[ChatGrammarInput, Tag("@grammar")], _input
]


class TextTool(_Callable):
    """A tool that takes a text, as the Responses API describes it."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: InputFormat | None = None
    _function: Function = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        """Measure it here, as functions are."""
        grammar = self.format if isinstance(self.format, GrammarInput) else None
        self._function = _of_text(self.name, self.description, grammar)

    @property
    def function(self) -> Function:
        """It in words of no API."""
        return self._function


class ChatCustomFields(Wire):
    """A tool that takes a text, as chat completions describe it."""

    name: FunctionName
    description: str | None = None
    format: ChatInputFormat | None = None
    _function: Function = PrivateAttr()

    def model_post_init(self, _: Any) -> None:
        """Measure it here, as functions are."""
        grammar = self.format.grammar if isinstance(self.format, ChatGrammarInput) else None
        self._function = _of_text(self.name, self.description, grammar)

    @property
    def function(self) -> Function:
        """It in words of no API."""
        return self._function


def _of_text(name: str, description: str | None, asked: TextGrammar | None) -> Function:
    grammar = None if asked is None else Grammar(kind=asked.syntax, source=asked.definition)
    return Function(
        name, description, TEXT_PARAMETERS, strict=True, takes_text=True, grammar=grammar
    ).measured


class ChatCustomTool(Wire):
    """The same with its type."""

    type: Literal["custom"]
    custom: ChatCustomFields

    @property
    def asked(self) -> Describing:
        """It in words of no API."""
        return self.custom


class Describing(Protocol):
    """What describes a function, or what is told of as one."""

    @property
    def function(self) -> Function:
        """It in words of no API."""


_tool = by_type("only tools of type function and custom are served")
_all = at_most(MAX_FUNCTIONS)

Functions = Annotated[
    list[
        Annotated[
            Annotated[FunctionTool, Tag("@function")] | Annotated[TextTool, Tag("@custom")], _tool
        ]
    ],
    _all,
]
ChatTools = Annotated[
    list[
        Annotated[
            Annotated[ChatTool, Tag("@function")] | Annotated[ChatCustomTool, Tag("@custom")], _tool
        ]
    ],
    _all,
]


class NamedFunction(Wire):
    """One function, by its name."""

    type: Literal["function"]
    name: FunctionName


class NamedCustom(Wire):
    """One custom tool, by its name."""

    type: Literal["custom"]
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


class ChatNamedCustom(Wire):
    """One custom tool as chat completions name it."""

    type: Literal["custom"]
    custom: _Name

    @property
    def name(self) -> str:
        """Its name."""
        return self.custom.name


_named = by_type("tools are named by the types function and custom")
Named = Annotated[
    Annotated[NamedFunction, Tag("@function")] | Annotated[NamedCustom, Tag("@custom")], _named
]
ChatNamed = Annotated[
    Annotated[ChatNamedFunction, Tag("@function")] | Annotated[ChatNamedCustom, Tag("@custom")],
    _named,
]
Mode = Literal["auto", "required"]


class AllowedTools(Wire):
    """Some of the tools, any of which may be called."""

    type: Literal["allowed_tools"]
    mode: Mode
    tools: Annotated[list[Named], at_most(MAX_FUNCTIONS, least=1)]


class _ChatAllowed(Wire):
    mode: Mode
    tools: Annotated[list[ChatNamed], at_most(MAX_FUNCTIONS, least=1)]


class ChatAllowedTools(Wire):
    """The same in chat completions."""

    type: Literal["allowed_tools"]
    allowed_tools: _ChatAllowed

    @property
    def mode(self) -> Mode:
        """Whether one of them has to be called."""
        return self.allowed_tools.mode

    @property
    def tools(self) -> list[ChatNamed]:
        """The tools."""
        return self.allowed_tools.tools


def _spelled(value: Any) -> Any:
    """A word, also where it comes as an object that has nothing else."""
    is_word = isinstance(value, dict) and value.keys() == {"type"} and value["type"] in _WORDS
    return value["type"] if is_word else value


_WORDS = ("none", "auto", "required")
_Word = Annotated[Literal["none", "auto", "required"], Tag("@text")]
_choice = by_type(
    'it is "none", "auto", "required", a function, a custom tool or allowed_tools',
    tag=_word_or_type,
)
ToolChoice = Annotated[
    _Word
    | Annotated[NamedFunction, Tag("@function")]
    | Annotated[NamedCustom, Tag("@custom")]
    | Annotated[AllowedTools, Tag("@allowed_tools")],
    _choice,
    BeforeValidator(_spelled),
]
ChatToolChoice = Annotated[
    _Word
    | Annotated[ChatNamedFunction, Tag("@function")]
    | Annotated[ChatNamedCustom, Tag("@custom")]
    | Annotated[ChatAllowedTools, Tag("@allowed_tools")],
    _choice,
    BeforeValidator(_spelled),
]


def asked_tools(
    functions: Sequence[Describing],
    choice: ToolChoice | ChatToolChoice | None,
    parallel: bool | None,
) -> Tools:
    """What a request says of functions. Raises `ApiError` naming a field that needs another."""
    described = [one.function for one in functions]
    names = [one.name for one in described]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid_request(f"There are two tools '{name}'.", f"tools[{index}]")
    parallel = parallel is not False
    if choice is None or isinstance(choice, str):
        mode = choice or "auto"
    else:
        if isinstance(choice, AllowedTools | ChatAllowedTools):
            mode, asked = choice.mode, [(one.type, one.name) for one in choice.tools]
        else:
            mode, parallel, asked = "required", False, [(choice.type, choice.name)]
        there = {("custom" if one.takes_text else "function", one.name) for one in described}
        if missing := [one for one in asked if one not in there]:
            kind, name = missing[0]
            word = "custom tool" if kind == "custom" else kind
            raise invalid_request(f"There is no {word} '{name}' in 'tools'.", "tool_choice")
        names = [name for _, name in asked]
    if mode == "required" and not names:
        raise invalid_request("There are no 'tools' to choose from.", "tool_choice")
    return Tools(described, [] if mode == "none" else names, parallel, mode == "required")
