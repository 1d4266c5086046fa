"""vLLM's structural tags: free text, in which whatever begins with a trigger is a structure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.wire.common import Declined, Wire
from engine.api import Grammar
from engine.grammar.tags import Tag, tag_grammar

_MOST = 64
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
    structures: Annotated[list[Structure], Field(fail_fast=True, min_length=1, max_length=_MOST)]
    triggers: Annotated[list[_Text], Field(fail_fast=True, min_length=1, max_length=_MOST)]
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
    def tags(self) -> list[Tag]:
        """The structures in words of no API."""
        return [Tag(self._trigger(one), one.begin, one.schema_, one.end) for one in self.structures]

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
