"""Keywords that are said in others': what they allow, and why some are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar.lark import json_value
from engine.grammar.source import held
from tests.engine.grammar.keywords.said import Said

KIND = {"type": "string", "enum": ["card", "bank", "cash"]}
PAID = {
    "type": "object",
    "properties": {"kind": KIND, "iban": {"type": "string"}, "pin": {"type": "integer"}},
    "required": ["kind"],
    "additionalProperties": False,
}
CARD = {"properties": {"kind": {"const": "card"}}, "required": ["kind"]}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CLOSED = OPEN | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (
            PAID | {"if": CARD, "then": {"required": ["pin"]}, "else": {"required": ["iban"]}},
            [{"kind": "card", "pin": 1}, {"kind": "cash", "iban": "x"}],
            [{"kind": "card"}, {"kind": "card", "iban": "x"}, {"kind": "bank", "pin": 1}],
        ),
        (
            PAID
            | {
                "allOf": [
                    {"if": CARD, "then": {"required": ["pin"]}},
                    {
                        "if": {"properties": {"kind": {"enum": ["bank"]}}},
                        "then": {"required": ["iban"]},
                        "else": {"properties": {"iban": False}},
                    },
                ]
            },
            [{"kind": "cash"}, {"kind": "card", "pin": 1}, {"kind": "bank", "iban": ""}],
            [{"kind": "card"}, {"kind": "bank"}, {"kind": "cash", "iban": ""}],
        ),
        (
            {"if": CARD, "then": {"type": ["object", "string"]}, "else": {"type": "object"}},
            ["x", {}, {"kind": "card"}, {"kind": 1}],
            [5, None, []],
        ),
        (
            {"if": CARD | {"type": "object"}, "then": {"maxProperties": 1}, "else": {"const": 5}},
            [5, {"kind": "card"}],
            [6, "card", {}, {"kind": "card", "pin": 1}],
        ),
        (
            CLOSED | {"dependentRequired": {"a": ["b"]}},
            [{}, {"b": 1}, {"a": 1, "b": 2}],
            [{"a": 1}],
        ),
        (
            CLOSED | {"dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
            [{"a": 1}, {"b": 1}, {"a": 1, "b": 5}],
            [{"a": 1, "b": 1}],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}},
            [{}, {"abc": 1}],
            [{"d": 1}, {"": 1}],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["x", "y"]}},
            [{}, {"y": 1}, {"x": 1, "y": 2}],
            [{"z": 1}],
        ),
        (
            OPEN | {"propertyNames": {"maxLength": 1}},
            [{"a": 1}, {"é": "c"}],
            [{"ab": 1}, {"a": "c"}],
        ),
        (OPEN | {"propertyNames": {"not": {"const": "x"}}}, [{"y": 1}], [{"x": 1}]),
        (CLOSED | {"minProperties": 1}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], [{}]),
        (OPEN | {"minProperties": 2}, [{"a": 1, "b": 1}, {"b": 1, "c": 1}], [{"a": 1}, {"c": 1}]),
        (
            OPEN | {"maxProperties": 1},
            [{}, {"b": 1}, {"c": 1}],
            [{"a": 1, "b": 1}, {"a": 1, "c": 1}],
        ),
        (
            {"minProperties": 3, "maxProperties": 2, "properties": {"a": {}}},
            [1, "x", []],
            [{}, {"a": 1}, {"a": 1, "b": 1, "c": 1}],
        ),
        (
            {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}},
            [[5], [1, 2, 7], [9, 1]],
            [[], [1, 2], ["5"]],
        ),
        (
            {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
            [[1, 1], [0, 1, 1, 0], [1, 1, 1], "x"],
            [[1], [1, 1, 1, 1], [0, 1]],
        ),
        ({"contains": {"const": 1}, "minContains": 0, "maxContains": 1}, [[], [1, 2]], [[1, 1]]),
        ({"not": {"type": ["object", "array"]}}, [1, "x", None], [{}, []]),
        ({"type": "string", "not": {"enum": ["no", "not", ""]}}, ["n", "none", "nott"], ["no", ""]),
        ({"type": "integer", "not": {"const": 3}}, [2, 4], [3]),
        ({"type": "number", "not": {"enum": [1, 1.5]}}, [1.2, 0, 2], [1, 1.5]),
        (
            {"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]},
            ["a", "abcd"],
            ["ab", "abc"],
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
            [{"a": 1}, {"b": 1}],
            [{}, {"a": 1, "b": 1}],
        ),
        (
            {"allOf": [OPEN, {"properties": {"c": {}}}], "unevaluatedProperties": False},
            [{"a": 1}, {"c": "x"}],
            [{"d": 1}],
        ),
        ({"prefixItems": [{"type": "null"}], "unevaluatedItems": False}, [[None], []], [[None, 1]]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, [0.25, 0.5], [0, 0.75]),
        (
            {"allOf": [{"type": "number", "exclusiveMaximum": -1}, {"minimum": -1.5}]},
            [-1.25, -1.5],
            [-1, -2],
        ),
        ({"enum": [1, 0.5, 2], "exclusiveMinimum": 1}, [2], [1, 0.5]),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 2.5}, [1, 2], [0, 3]),
        ({"type": "integer", "maximum": 2**53 + 3}, [2**53 + 1], [2**53 + 4]),
        ({"type": "array", "uniqueItems": False, "maxItems": 1.0}, [[], [1]], [[1, 1]]),
    ],
)
def test_a_keyword_allows_what_it_should_and_no_more(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    said = Said(schema)
    assert said.problem is None
    assert [value for value in valid if not said.value(value)] == []
    assert [value for value in invalid if said.value(value)] == []


def test_properties_keep_the_schemas_order_and_come_once() -> None:
    said = Said(PAID | {"if": CARD, "then": {"required": ["pin"]}})
    assert said.text('{"kind":"card","pin":1}')
    assert not said.text('{"pin":1,"kind":"card"}')
    assert not said.text('{"kind":"card","kind":"card","pin":1}')


def test_references_told_apart_by_a_constant_are_alternatives() -> None:
    kinds = {
        name: {
            "type": "object",
            "properties": {"kind": {"const": name}, "next": {"$ref": "#"}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name in ("wall", "door")
    }
    references = [{"$ref": f"#/$defs/{name}"} for name in kinds]
    said = Said({"oneOf": references, "$defs": kinds})
    assert said.value({"kind": "wall", "next": {"kind": "door"}})
    assert not said.value({"kind": "roof"})


def test_a_hundred_alternatives_of_a_constant_are_told_apart_and_followed() -> None:
    options = [
        {
            "type": "object",
            "properties": {"kind": {"const": f"k{at}"}, "of": {"const": at}},
            "required": ["kind", "of"],
        }
        for at in range(100)
    ]
    said = Said({"oneOf": options})
    assert said.value({"kind": "k77", "of": 77})
    assert not said.value({"kind": "k77", "of": 76})


def test_what_a_reference_leads_to_stays_where_it_is() -> None:
    condition = {"if": {"required": ["a"]}, "then": {"required": ["b"]}}
    schema = {
        "type": "object",
        "properties": {"b": {"$ref": "#/allOf/1/properties/c"}},
        "allOf": [condition, {"properties": {"c": {"type": "null"}}}],
    }
    assert Said(schema).value({"a": 1, "b": None})
    assert not Said(schema).value({"a": 1, "b": 1})
    led = {"$ref": "#/then", "if": {"required": ["a"]}, "then": {"required": ["b"]}}
    assert Said(led).problem == "'then' cannot be held where a '$ref' leads into it"


OPPOSITES = "it is of constants, types, bounds, lengths, 'properties', 'required'"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"not": {"pattern": "a"}}, f"'not' of 'pattern' is not supported here; {OPPOSITES}"),
        (
            {"if": {"type": "integer"}, "then": {"minimum": 1}},
            f"'if' of the type 'integer' is not supported here; {OPPOSITES}",
        ),
        (
            {"contains": {"multipleOf": 2}, "maxContains": 1},
            f"'maxContains' of 'multipleOf' is not supported here; {OPPOSITES}",
        ),
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
            "'oneOf' with alternatives that one value may match together, of the type 'integer', "
            f"is not supported here; {OPPOSITES}",
        ),
        ({"uniqueItems": True}, "'uniqueItems' is not supported here: items are not compared"),
        (
            {"anyOf": [{"properties": {"b": {}}}], "unevaluatedProperties": False},
            "'unevaluatedProperties' depends on which part of 'anyOf' holds",
        ),
        (
            {"properties": {name: {} for name in "abcdefghijkl"}, "maxProperties": 6},
            "'maxProperties' beside 12 properties that may lack makes more than 128 alternatives",
        ),
        (
            {"propertyNames": {"pattern": "a", "maxLength": 3}},
            "'propertyNames': it is held with constants, one 'pattern', one 'format' or lengths "
            "alone",
        ),
        ({"const": 2**53 + 1}, "'const' has a number of more than 53 bits, and cannot be held"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_reason(
    schema: dict[str, Any], problem: str
) -> None:
    assert Said(schema).problem == problem
    within = {"properties": {"x": {"prefixItems": [schema], "minItems": 1}}}
    for whole in (within, f'start: "call " %json {json.dumps(within)}'):
        kind = "lark" if isinstance(whole, str) else "json_schema"
        said = Said(whole, kind=kind)
        assert said.problem is not None
        path, _, told = said.problem.partition(": ")
        assert told == problem
        assert path == "properties.x.prefixItems[0]"


def test_a_part_that_allows_nothing_is_told_only_where_nothing_else_is_allowed() -> None:
    nothing = "nothing can be said that it allows"
    assert Said({"not": {}}).problem == nothing
    forbidding = {"type": "object", "properties": {"a": False, "b": {"type": "widget"}}}
    assert Said(forbidding).problem == "properties.b: there is no 'type' widget"
    assert Said({"anyOf": [{"not": {}}, {"type": "null"}]}).value(None)


def test_a_schema_in_a_lark_grammar_is_held_alike_unless_it_is_lenient() -> None:
    schema = {"type": "object", "not": {"required": ["a"]}}
    strict = Said(f'start: "x" {json_value(schema)} "y"', kind="lark")
    assert strict.text('x{"b":1}y')
    assert not strict.text('x{"a":1}y')
    lenient = Said(f'start: "x" {json_value(schema, lenient=True)} "y"', kind="lark")
    assert lenient.text('x{"a":1}y')
    within = {"properties": {"b": {"not": {"pattern": "a"}}}}
    assert str(Said(f"start: {json_value(within)}", kind="lark").problem).startswith(
        "properties.b: 'not' of 'pattern' is not supported here"
    )


def test_what_allows_less_never_makes_alternatives_look_told_apart() -> None:
    less = {"minProperties": 3, "maxProperties": 2, "properties": {"a": {}}}
    schema = {"oneOf": [less | {"additionalProperties": False}, {"type": "string"}]}
    assert "'oneOf' with alternatives that one value may match together" in str(
        Said(schema).problem
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"required": [f"p{at}"]} for at in range(100)]},
        {"allOf": [{"dependentRequired": {a: [b]}} for a in "abcdef" for b in "ghijkl"]},
        {"contains": {"contains": {"contains": {"contains": {"contains": {"contains": {}}}}}}},
        {"items": {"multipleOf": 7919}, "contains": {"multipleOf": 7907}},
    ],
    ids=["oneOf", "dependentRequired", "contains", "multipleOf"],
)
def test_what_makes_too_much_of_itself_is_refused_before_it_is_made(schema: dict[str, Any]) -> None:
    assert "its keywords make too much of each other" in str(Said(schema).problem)
    assert len(held(json.dumps(schema))) < 1 << 20


def test_a_schema_without_such_keywords_stays_as_it_is_written() -> None:
    source = '{"type":"object",  "properties":{"a":{"enum":["if","not"]}},"required":["a"]}'
    assert held(source) == source
