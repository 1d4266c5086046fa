"""Schemas of every kind that can be held, drawn at random: keywords as the JSON Schema Test Suite
has them, in the shapes that clients send (those of MaskBench: records, unions, maps, tuples)."""

from __future__ import annotations

import random
from typing import Any


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Of any kind of value; whatever holds others ends after `depth` of them."""
    kinds = [_text, _format, _number, _constant, *(_NESTED * (depth > 0))]
    return rng.choice(kinds)(rng, depth - 1)


def _text(rng: random.Random, _: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 7)}
    return {"type": "string", "pattern": rng.choice(["^[a-f]{2,5}$", "^(ab|cd)+-[0-9]{2}$"])}


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    least = rng.randrange(-50, 50)
    words = rng.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
    bounds = dict(zip(words, (least, least + rng.randrange(2, 500)), strict=True))
    if rng.random() < 0.3:
        return {"type": "integer", **bounds, "multipleOf": rng.randrange(2, 6)}
    return {"type": rng.choice(["integer", "integer", "number"]), **bounds}


def _constant(rng: random.Random, _: int) -> dict[str, Any]:
    values: list[object] = [None, True, 3, -1.5, "wall", 'a "b"\n', [1, "x"], {"k": None}]
    return rng.choice(
        [
            {"const": rng.choice(values)},
            {"enum": rng.sample(values, 3)},
            {"type": "boolean"},
            {"type": ["null", "boolean"]},
        ]
    )


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["a", "name", "two words", 'qu"ote', "é"], rng.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    items = random_schema(rng, depth)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randrange(1, 4))]}


def _format(rng: random.Random, _: int) -> dict[str, Any]:
    # Of times RFC 3339 lets T and Z be small letters, and so do we; the validator does not.
    names = ["date", "email", "uuid", "ipv4", "ipv6", "duration"]
    return {"type": "string", "format": rng.choice(names)}


def _map(rng: random.Random, depth: int) -> dict[str, Any]:
    """Properties of any name, or of a kind of names, beside known ones."""
    known = {"id": {"type": "integer", "minimum": 0, "maximum": 9}}
    pattern = {"^x-[a-c]{1,2}$": random_schema(rng, depth)}
    rest = rng.choice([False, {"type": "boolean"}, random_schema(rng, depth)])
    whole = {"type": "object", "properties": known, "required": ["id"]}
    if rng.random() < 0.5:
        return whole | {"patternProperties": pattern, "additionalProperties": False}
    return whole | {"additionalProperties": rest}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    first = [random_schema(rng, depth) for _ in range(rng.randrange(1, 3))]
    items = rng.choice([False, {"type": "null"}])
    size = {"minItems": len(first), "maxItems": len(first) + 2 * (items is not False)}
    return {"type": "array", "prefixItems": first, "items": items, **size}


def _all_of(rng: random.Random, depth: int) -> dict[str, Any]:
    """Parts of one object, and of one number."""
    bounded = {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": rng.randrange(3, 99)}]}
    properties = {"n": bounded, "one": random_schema(rng, depth)}
    return {
        "allOf": [
            {"type": "object", "properties": properties, "additionalProperties": False},
            {"required": rng.sample(["n", "one"], rng.randrange(3))},
        ]
    }


def _one_of(rng: random.Random, depth: int) -> dict[str, Any]:
    """Objects that are told apart by a constant, as of a union of classes."""
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": random_schema(rng, depth)},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind in ("wall", "door", "roof")[: rng.randrange(2, 4)]
        ]
    }


def _conditional(rng: random.Random, depth: int) -> dict[str, Any]:
    """What a property is decides of another one, as `if` says, or what depends on it."""
    kinds = ["wall", "door", "roof"]
    asked = {"properties": {"kind": {"const": rng.choice(kinds)}}, "required": ["kind"]}
    told = {"if": asked, "then": {"required": ["size"]}, "else": {"required": ["name"]}}
    properties = {name: random_schema(rng, depth) for name in ("size", "name")}
    whole = {
        "type": "object",
        "properties": {"kind": {"enum": kinds}, **properties},
        "additionalProperties": False,
    }
    return whole | rng.choice([told, {"dependentRequired": {"kind": ["name"], "size": ["kind"]}}])


def _contains(rng: random.Random, depth: int) -> dict[str, Any]:
    wanted = {"const": rng.randrange(3)}
    counts = rng.choice([{}, {"minContains": 2}, {"maxContains": 1}])
    return {"type": "array", "items": {"enum": [0, 1, 2, None]}, "contains": wanted, **counts}


def _counted(rng: random.Random, depth: int) -> dict[str, Any]:
    """Some of the properties, or of names of a kind."""
    counts = {"minProperties": rng.randrange(1, 3), "maxProperties": 2}
    if rng.random() < 0.5:
        names = {"propertyNames": rng.choice([{"enum": ["a", "b", "c"]}, {"pattern": "^[ab]$"}])}
        return {"type": "object", **names, "additionalProperties": random_schema(rng, depth)}
    properties = {name: random_schema(rng, depth) for name in "abc"}
    return {"type": "object", "properties": properties, "additionalProperties": False} | counts


_NESTED = [
    _object,
    _object,
    _array,
    _any_of,
    _map,
    _tuple,
    _all_of,
    _one_of,
    _conditional,
    _contains,
    _counted,
]
