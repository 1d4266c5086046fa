"""Patterns of one value are counted before they are put together, wherever they come from."""

import json
from typing import Any

import pytest

from engine.api import Grammar
from engine.grammar.source import problem_of
from engine.grammar.together import MOST_TOGETHER, crowded

MANY = range(24)


def one(at: int) -> dict[str, Any]:
    return {"pattern": f"a.{{{at}}}"}


CROWDED = {
    "themselves": {"allOf": [one(at) for at in MANY]},
    "alternatives": {"allOf": [{"anyOf": [one(at)]} for at in MANY]},
    "properties": {"allOf": [{"properties": {"x": one(at)}} for at in MANY]},
    "any name": {
        "allOf": [{"properties": {"x": one(at)}} for at in MANY[:12]]
        + [{"additionalProperties": one(at)} for at in MANY[12:]]
    },
    "items": {"allOf": [{"items": one(at)} for at in MANY]},
    "in alternatives": {"allOf": [{"anyOf": [{"properties": {"x": one(at)}}]} for at in MANY]},
}


@pytest.mark.parametrize("schema", CROWDED.values(), ids=CROWDED)
def test_too_many_patterns_of_one_value_are_refused_by_path(schema: dict[str, Any]) -> None:
    whole = {"properties": {"deep": schema}}
    said = (
        f"properties.deep: 'allOf' puts more than {MOST_TOGETHER} patterns together for one value"
    )
    assert problem_of(Grammar(kind="json_schema", source=json.dumps(whole))) == said
    lark = f'start: "x" %json {json.dumps(whole)}'
    assert problem_of(Grammar(kind="lark", source=lark)) == said


def test_a_chain_of_references_is_followed() -> None:
    chain = {str(at): {**one(at), "$ref": f"#/$defs/{at + 1}"} for at in MANY}
    schema = {"$ref": "#/$defs/0", "$defs": {**chain, "24": {}}}
    assert "'$ref' puts more than" in str(crowded(schema))


def test_patterns_of_different_values_and_of_alternatives_are_not_counted_together() -> None:
    text = {"type": "string", "pattern": "^[a-c]{2}$"}
    record = {"type": "object", "properties": {f"p{at}": text for at in range(40)}}
    joined = {
        "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"p0": {"type": "string"}}}],
        "$defs": {"a": record},
    }
    union = {"allOf": [{"anyOf": [{"properties": {"id": one(at)}} for at in MANY]}, record]}
    assert crowded(joined) is None
    assert crowded(union) is None
    assert problem_of(Grammar(kind="json_schema", source=json.dumps(joined))) is None


def test_what_leads_back_to_itself_ends() -> None:
    tree = {"properties": {"next": {"$ref": "#/$defs/a"}, "other": {"$ref": "#/$defs/a"}}}
    both = {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": tree, "b": tree},
    }
    assert crowded({"$ref": "#", "allOf": [{"$ref": "#"}]}) is None
    assert crowded(both) is None
