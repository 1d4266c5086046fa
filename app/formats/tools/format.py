"""What a format of calls is, and what formats put the grammars of their calls together of.

Expressions are Lark's. A format writes blocks of calls. Which of them an answer may have, and what
stands around them, is said in `app.generation.answer_grammar`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.formats.tools.json_calls import Call
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import ANY_TEXT, json_value, literal, token
from engine.grammar.schemas import cheap, tame
from engine.validation import MAX_GRAMMAR_BYTES

_DEFINITIONS = ("$defs", "definitions")
_TYPES = {"string", "integer", "number", "boolean", "null", "array", "object"}
_PLAIN_OBJECT = {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
_NOTES = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "strict"}
"""Keywords that allow and forbid nothing."""
_CALLS_OF_EACH = 2
_FEWEST_MOST_CALLS = 8
"""Calls in one answer, at most: so many for each function that may be called, or for all."""
_MOST_WRITTEN = 4 * MAX_GRAMMAR_BYTES
"""Characters of JSON schemas: formats write each a few times, of which rules keep one."""


class Unwritable(Exception):
    """A format has no way to write such arguments; the message says why."""


@dataclass(frozen=True)
class Shape:
    """What the calls of a function look like: its name, and the schema of its arguments.

    One that is `strict` is held in full, or not at all. With `raw`, an expression, the function
    takes one text that this derives, and which is written as it is. Where such a text ends nothing
    but the end of the answer can tell: whatever marks an end may stand in it.
    """

    name: str
    schema: Mapping[str, Any]
    strict: bool = True
    raw: str | None = None

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, Any] | None, strict: bool) -> Shape:
        """Arguments are an object, of members that the schema tells of where it tells of some."""
        if parameters is None:
            parameters = {"properties": {}}
        schema = {**parameters, "type": "object"}
        if not strict:
            schema = tame(schema)
        if "properties" in schema and schema.keys() <= _PLAIN_OBJECT | _NOTES:
            schema.setdefault("additionalProperties", False)
        return cls(name, schema, strict)

    @property
    def cheap(self) -> Shape:
        """It without expressions and large numbers."""
        return replace(self, schema=cheap(self.schema), strict=False)

    @property
    def loosened(self) -> Shape:
        """Any object; of its members the names are kept, and types that are simple."""
        properties = {}
        for key, described in as_object(self.schema.get("properties")).items():
            kind = as_object(described).get("type")
            is_known = isinstance(kind, str) and kind in _TYPES
            properties[key] = {"type": kind} if is_known else {}
        return replace(self, schema={"type": "object", "properties": properties}, strict=False)

    @property
    def json(self) -> str:
        """The arguments as JSON."""
        return json_value(self.schema, lenient=not self.strict)

    @property
    def definitions(self) -> dict[str, Any]:
        """What parts of the schema may refer to."""
        return {key: self.schema[key] for key in _DEFINITIONS if key in self.schema}

    def members(self, wanted: Callable[[str], bool]) -> Iterator[Member]:
        """The members of the arguments, for formats that do not write these as JSON.

        `wanted` says whether a name can be written. Raises `Unwritable`.
        """
        if self.strict and (beyond := self.schema.keys() - _PLAIN_OBJECT - _NOTES):
            raise Unwritable(f"this model's calls cannot be held to '{min(beyond)}'")
        return members(self.schema, self, wanted)


@dataclass(frozen=True)
class Member:
    """A member of an object; `schema` has the definitions that it may refer to."""

    key: str
    schema: dict[str, Any]
    required: bool


def members(
    schema: Mapping[str, Any], shape: Shape, wanted: Callable[[str], bool]
) -> Iterator[Member]:
    """The members of an object by its schema, which is part of a shape's. See `Shape.members`."""
    required = texts_of(schema.get("required"))
    rest = as_object(schema.get("additionalProperties"))
    properties = {**as_object(schema.get("properties"))}
    for key in required:
        properties.setdefault(key, rest)
    for key, described in properties.items():
        if wanted(key):
            own = {**shape.definitions, **as_object(described)}
            yield Member(key, own, key in required)
        elif shape.strict:
            raise Unwritable(f"this model's calls cannot have an argument '{key}'")


@dataclass(frozen=True)
class Block:
    """One or more `calls` behind an `opening`: a marker, other text, or nothing.

    In free text `spelled`, a terminal, is what opens it where that is more than the `opening`. One
    that is not `usual` is there for free text alone, where a model may come to write it.
    """

    opening: str
    calls: str
    spelled: str | None = None
    usual: bool = True


@dataclass(frozen=True)
class Blocks:
    """All blocks of a format, and the terminal of a text in which none begins by itself."""

    blocks: Sequence[Block]
    text: str = ANY_TEXT


@dataclass
class Writer:
    """What a format is told, and the rules that it makes.

    `tokens` are the markers that are control tokens. `beside_json` is whether an answer may be
    other JSON as well.
    """

    shapes: Sequence[Shape]
    parallel: bool
    tokens: Mapping[str, int]
    beside_json: bool = False
    _names: dict[tuple[str, str], str] = field(default_factory=dict)
    _num_written: int = 0

    @property
    def rules(self) -> list[str]:
        """The rules so far, a line each."""
        return [f"{name}{option}: {rule}" for (rule, option), name in self._names.items()]

    def rule(self, expression: str, option: str = "") -> str:
        """The name of a rule for this."""
        return self._names.setdefault((expression, option), f"part_{len(self._names)}")

    def terminal(self, expression: str) -> str:
        """The same for a terminal, which takes as much as it can."""
        return self._names.setdefault((expression, ""), f"PART_{len(self._names)}")

    def lazy(self, expression: str) -> str:
        """The same for one that takes as little as it can."""
        return self.rule(expression, "[lazy]")

    def json(self, schema: Mapping[str, Any], *, strict: bool, escapes: str | None = None) -> str:
        """JSON that is valid by a schema, see `json_value`.

        Raises `Unwritable` where members that each bring all definitions make too much of them.
        """
        value = json_value(schema, lenient=not strict, escapes=escapes)
        self._num_written += len(value)
        if self._num_written > _MOST_WRITTEN:
            raise Unwritable("its members and definitions together are too long")
        return value

    def marker(self, text: str) -> str:
        """A marker, as the token that it is or as it is spelled."""
        return token(self.tokens[text]) if text in self.tokens else literal(text)

    def some(self, write: Callable[[Shape], str]) -> str:
        """A call of any function that takes JSON."""
        return self.rule(" | ".join(write(shape) for shape in self._in_json))

    def or_raw(self, calls: Callable[[], str], frame: Callable[[str], str], end: str = "") -> str:
        """Such `calls`, if there are functions of that kind, or one of another function: the
        `frame` that has its name, its text, and the `end` of the answer.
        """
        raw = [
            f"{frame(one.name)} {self.rule(one.raw)} {end}"
            for one in self.shapes
            if one.raw is not None
        ]
        return " | ".join([calls(), *raw] if self._in_json else raw)

    @property
    def has_raw(self) -> bool:
        """Whether there are functions of the other kind."""
        return len(self._in_json) < len(self.shapes)

    @property
    def _in_json(self) -> list[Shape]:
        return [one for one in self.shapes if one.raw is None]

    def list(self, call: str, separator: str) -> str:
        """Such calls, as many as there may be; `separator` is an expression."""
        return f"{call} {self.more(f'{separator} {call}')}"

    def more(self, call: str) -> str:
        """Calls behind the first, `call` with what parts it from the one before.

        They are bounded: a small model that has to call could go on until its budget ends.
        """
        if not self.parallel:
            return ""
        most = max(_FEWEST_MOST_CALLS, _CALLS_OF_EACH * len(self._in_json))
        return f"({call}){{0,{most - 1}}}"


def json_call(shape: Shape, key: str = "arguments") -> str:
    """A call as such an object as `json_calls` reads."""
    start = f'{{"name": "{shape.name}", "{key}": '
    return f'{literal(start)} {shape.json} "}}"'


def raw_frame(behind: str) -> Callable[[str], str]:
    """What stands before the text of a call that is none of JSON: its name is an object's only
    member, and the text begins on the line below.
    """
    return lambda name: literal(f'{{"name": "{name}"}}{behind}\n')


def joined(writer: Writer, members: Sequence[tuple[str, bool]], separator: str) -> str:
    """Expressions of members in their order, of which only some are required."""
    first = next((at for at, (_, required) in enumerate(members) if required), None)
    if first is None:
        return _all_optional(writer, [one for one, _ in members], separator)
    before = [f"({one} {separator})?" for one, _ in members[:first]]
    after = [
        f"{separator} {one}" if required else f"({separator} {one})?"
        for one, required in members[first + 1 :]
    ]
    return " ".join([*before, members[first][0], *after])


def _all_optional(writer: Writer, members: Sequence[str], separator: str) -> str:
    begun: list[str] = []  # those that begin with each member, the last one first
    rest = ""
    for one in reversed(members):
        begun.append(f"{one} {rest}")
        rest = writer.rule(f"({separator} {one})? {rest}")
    return f"({' | '.join(begun)})?" if begun else ""


def as_object(value: object) -> dict[str, Any]:
    """An object in a schema; an empty one where there is something else, or nothing."""
    return value if isinstance(value, dict) else {}


def texts_of(value: object) -> list[str]:
    """The texts of a list in a schema."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def allows_only(schema: Mapping[str, Any], keywords: Collection[str]) -> bool:
    """Whether no other keyword allows or forbids anything."""
    return schema.keys() <= {*keywords, *_DEFINITIONS} | _NOTES


@dataclass(frozen=True)
class Format:
    """How calls stand in an answer's text.

    `read` makes parts of all of a source. `markers` are what a tokenizer may have as special tokens
    and would not show. `write` is for models whose template does not write calls itself. `grammar`
    holds answers to calls.
    """

    read: Callable[[Source], Reading[None]]
    write: Callable[[Sequence[Call]], str]
    markers: tuple[str, ...]
    grammar: Callable[[Writer], Blocks]
