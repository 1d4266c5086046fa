"""What a client wants an answer to be: OpenAI's formats, three more, and vLLM's words for the same.

`regex`, `grammar` and `choice` are extensions, as are vLLM's structural tags: free text, in which
whatever begins with a trigger is a structure. A format holds in full, `strict` or not.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.wire.common import Declined, DeclinedFlag, Wire, type_tag
from engine.api import Grammar
from engine.grammar.tags import Tag as StructureTag
from engine.grammar.tags import tag_grammar

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
    structures: Annotated[
        list[Structure], Field(fail_fast=True, min_length=1, max_length=_MOST_STRUCTURES)
    ]
    triggers: Annotated[
        list[_Text], Field(fail_fast=True, min_length=1, max_length=_MOST_STRUCTURES)
    ]
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

    @property
    def grammar(self) -> Grammar:
        """Of a model whose control tokens no structure has."""
        return tag_grammar(self.tags, {})

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


_ANY_OBJECT = Grammar(kind="json_schema", source='{"type":"object"}')
_MOST_CHOICES = 1024

Choices = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=_MOST_CHOICES)]
SchemaName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
JsonSchema = dict[str, Any]


class FreeText(Wire):
    """Whatever the model says."""

    type: Literal["text"]

    @property
    def grammar(self) -> Grammar | None:
        """What holds the answer to the format, if anything does."""
        return None


class AnyObject(Wire):
    """Some JSON object."""

    type: Literal["json_object"]

    @property
    def grammar(self) -> Grammar:
        """See `FreeText`."""
        return _ANY_OBJECT


class NamedSchema(Wire):
    """A JSON schema. Name and description are for models elsewhere; here they change nothing."""

    name: SchemaName
    description: str | None = None
    schema_: JsonSchema = Field(alias="schema")
    strict: bool | None = None

    @property
    def grammar(self) -> Grammar:
        """See `FreeText`."""
        return _of_schema(self.schema_)


class SchemaFormat(NamedSchema):
    """JSON that is valid by a schema, as the Responses API has it."""

    type: Literal["json_schema"]


class ChatSchemaFormat(Wire):
    """The same as chat completions have it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    @property
    def grammar(self) -> Grammar:
        """See `FreeText`."""
        return self.json_schema.grammar


class RegexFormat(Wire):
    """Text that a regular expression matches from its first character to its last."""

    type: Literal["regex"]
    regex: str

    @property
    def grammar(self) -> Grammar:
        """See `FreeText`."""
        return Grammar(kind="regex", source=self.regex)


class GrammarFormat(Wire):
    """Text that a context-free grammar derives: in Lark from `start`, in GBNF from `root`."""

    type: Literal["grammar"]
    grammar_: str = Field(alias="grammar")

    @property
    def grammar(self) -> Grammar:
        """See `FreeText`."""
        return Grammar(kind="lark", source=self.grammar_)


class ChoiceFormat(Wire):
    """One of some texts."""

    type: Literal["choice"]
    choice: Choices

    @property
    def grammar(self) -> Grammar:
        """See `FreeText`."""
        return _of_choices(self.choice)


_of_kind = Discriminator(
    type_tag,
    custom_error_type="unsupported_value",
    custom_error_message=(
        "formats are text, json_object, json_schema, regex, grammar, choice and structural_tag"
    ),
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
        """See `FreeText`."""
        return self._asked[self.kind]

    @property
    def _asked(self) -> dict[str, Grammar]:
        found: dict[str, Grammar] = {}
        if isinstance(self.json_, str):
            found["json"] = Grammar(kind="json_schema", source=self.json_)
        elif self.json_ is not None:
            found["json"] = _of_schema(self.json_)
        if self.json_object:
            found["json_object"] = _ANY_OBJECT
        if self.regex is not None:
            found["regex"] = Grammar(kind="regex", source=self.regex)
        if self.choice is not None:
            found["choice"] = _of_choices(self.choice)
        if self.grammar_ is not None:
            found["grammar"] = Grammar(kind="lark", source=self.grammar_)
        if self.structural_tag is not None:
            found["structural_tag"] = self.structural_tag.grammar
        return found


def _of_schema(schema: JsonSchema) -> Grammar:
    return Grammar(kind="json_schema", source=msgspec.json.encode(schema).decode())


def _of_choices(choices: list[str]) -> Grammar:
    """Strings of Lark are written like those of JSON."""
    return Grammar(kind="lark", source=f"start: {' | '.join(map(json.dumps, choices))}")
