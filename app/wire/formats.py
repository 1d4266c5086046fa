"""What a client wants an answer to be: OpenAI's formats, three more, and vLLM's words for the same.

`regex`, `grammar` and `choice` are extensions, as are vLLM's structural tags: free text, in which
whatever begins with a trigger is a structure. A format holds in full, `strict` or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.wire.common import Declined, DeclinedFlag, Wire, at_most, by_type
from engine.api import Grammar
from engine.grammar.lark import Tag as StructureTag
from engine.grammar.lark import tag_grammar

_MOST_STRUCTURES = 64
_Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class Structure(Wire):
    """JSON that is valid by a schema, between two texts."""

    begin: _Text
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    end: Annotated[str, StringConstraints(max_length=1024)]


class StructuralTags(Wire):
    """Every structure begins with one of the `triggers`. `format`, a language of xgrammar's for
    more than that, is not served.
    """

    type: Literal["structural_tag"]
    structures: Annotated[list[Structure], at_most(_MOST_STRUCTURES, least=1)]
    triggers: Annotated[list[_Text], at_most(_MOST_STRUCTURES, least=1)]
    format: Declined = None

    @model_validator(mode="after")
    def _each_begins(self) -> StructuralTags:
        begins = [one.begin for one in self.structures]
        for begin in begins:
            if not begin.startswith(tuple(self.triggers)):
                message = "no trigger begins the structure {begin}"
                raise PydanticCustomError("invalid_value", message, {"begin": repr(begin[:64])})
        for trigger in self.triggers:
            if not any(begin.startswith(trigger) for begin in begins):
                message = "no structure begins with the trigger {trigger}"
                raise PydanticCustomError("invalid_value", message, {"trigger": repr(trigger[:64])})
        return self

    @property
    def tags(self) -> list[StructureTag]:
        """The structures in words of no API."""
        return [
            StructureTag(self._trigger(one), one.begin, one.schema_, one.end)
            for one in self.structures
        ]

    def _trigger(self, structure: Structure) -> str:
        """The one that is read first."""
        return min((one for one in self.triggers if structure.begin.startswith(one)), key=len)


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise PydanticCustomError("invalid_value", "it is no valid JSON") from None


EncodedTags = Annotated[StructuralTags, BeforeValidator(_decoded)]
"""The same as vLLM has it in `structured_outputs`: as JSON in a string, or as it is."""


def _of_schema(schema: str | JsonSchema) -> Grammar:
    source = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar(kind="json_schema", source=source)


def _of_choices(choices: list[str]) -> Grammar:
    """Strings of Lark are written like those of JSON."""
    return _of_lark(f"start: {' | '.join(map(json.dumps, choices))}")


def _of_lark(source: str) -> Grammar:
    return Grammar(kind="lark", source=source)


def _of_regex(source: str) -> Grammar:
    return Grammar(kind="regex", source=source)


def _of_tags(structures: StructuralTags) -> Grammar:
    """Of a model whose control tokens no structure has."""
    return tag_grammar(structures.tags, {})


_ANY_OBJECT = Grammar(kind="json_schema", source='{"type":"object"}')
_MOST_CHOICES = 1024

Choices = Annotated[list[str], at_most(_MOST_CHOICES, least=1)]
SchemaName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
JsonSchema = dict[str, Any]


class FreeText(Wire):
    """Whatever the model says."""

    type: Literal["text"]


class AnyObject(Wire):
    """Some JSON object."""

    type: Literal["json_object"]


class NamedSchema(Wire):
    """A JSON schema. Name and description are for models elsewhere; here they change nothing."""

    name: SchemaName
    description: str | None = None
    schema_: JsonSchema = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(NamedSchema):
    """JSON that is valid by a schema, as the Responses API has it."""

    type: Literal["json_schema"]


class ChatSchemaFormat(Wire):
    """The same as chat completions have it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class RegexFormat(Wire):
    """Text that a regular expression matches from its first character to its last."""

    type: Literal["regex"]
    regex: str


class GrammarFormat(Wire):
    """Text that a context-free grammar derives: in Lark from `start`, in GBNF from `root`."""

    type: Literal["grammar"]
    grammar: str


class ChoiceFormat(Wire):
    """One of some texts."""

    type: Literal["choice"]
    choice: Choices


_of_kind = by_type(
    "formats are text, json_object, json_schema, regex, grammar, choice and structural_tag"
)
_Shared = (
    Annotated[FreeText, Tag("@text")]
    | Annotated[AnyObject, Tag("@json_object")]
    | Annotated[RegexFormat, Tag("@regex")]
    | Annotated[GrammarFormat, Tag("@grammar")]
    | Annotated[ChoiceFormat, Tag("@choice")]
    | Annotated[StructuralTags, Tag("@structural_tag")]
)
TextFormat = Annotated[Annotated[SchemaFormat, Tag("@json_schema")] | _Shared, _of_kind]
"""`text.format` of a response."""
ResponseFormat = Annotated[Annotated[ChatSchemaFormat, Tag("@json_schema")] | _Shared, _of_kind]
"""`response_format` of a chat completion."""


def grammar_of(form: TextFormat | ResponseFormat) -> Grammar | None:
    """What holds an answer to a format; for free text nothing does."""
    match form:
        case AnyObject():
            return _ANY_OBJECT
        case SchemaFormat():
            return _of_schema(form.schema_)
        case ChatSchemaFormat():
            return _of_schema(form.json_schema.schema_)
        case RegexFormat():
            return _of_regex(form.regex)
        case GrammarFormat():
            return _of_lark(form.grammar)
        case ChoiceFormat():
            return _of_choices(form.choice)
        case StructuralTags():
            return _of_tags(form)
    return None


_GRAMMARS: Mapping[str, Callable[[Any], Grammar]] = {
    "json": _of_schema,
    "json_object": lambda _: _ANY_OBJECT,
    "regex": _of_regex,
    "choice": _of_choices,
    "grammar": _of_lark,
    "structural_tag": _of_tags,
}
"""What each of vLLM's words asks for."""


class StructuredOutputs(Wire):
    """vLLM's words: `json`, `json_object`, `regex`, `choice`, `grammar` or `structural_tag`."""

    json_: str | JsonSchema | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar_: str | None = Field(default=None, alias="grammar")
    structural_tag: EncodedTags | None = None
    whitespace_pattern: Declined = None
    disable_any_whitespace: DeclinedFlag = None
    disable_additional_properties: DeclinedFlag = None
    disable_fallback: DeclinedFlag = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self._asked) != 1:
            message = "give one of json, json_object, regex, choice, grammar, structural_tag"
            raise PydanticCustomError("invalid_value", message)
        return self

    @property
    def kind(self) -> str:
        """Which of its fields asks for something."""
        return next(iter(self._asked))

    @property
    def grammar(self) -> Grammar:
        """What holds the answer to it."""
        kind = self.kind
        return _GRAMMARS[kind](self._asked[kind])

    @property
    def _asked(self) -> dict[str, Any]:
        # Not what a client has sent besides: `regex_`, say, which may be ignored.
        fields = {name.removesuffix("_"): getattr(self, name) for name in type(self).model_fields}
        given = {kind: fields[kind] for kind in _GRAMMARS}
        return {kind: value for kind, value in given.items() if value not in (None, False)}
