"""Schemas of all keywords at random: what is said is valid, and hardly a value is missed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from tests.engine.grammar.keywords.said import Said

NAMES = ["a", "b", "c"]
LEAVES: list[dict[str, Any]] = [
    *({"type": kind} for kind in ("string", "integer", "number", "object", "array", "null")),
    {"type": ["string", "number"]},
    *({"const": value} for value in (None, True, 0, 1, 1.5, "a", "ab")),
    {"enum": [False, 1, "b"]},
    {"minimum": 1},
    {"exclusiveMaximum": 1},
    {"minLength": 1},
    {"maxLength": 1},
    {"pattern": "^a"},
    {"required": ["a"]},
    {"required": ["b", "c"]},
    {"maxItems": 1},
    {"minProperties": 1},
]
NAME_RULES: list[Any] = [
    {"enum": ["a", "b"]},
    {"maxLength": 1},
    {"pattern": "^a"},
    {"not": {"const": "a"}},
    False,
]
Drawn = Callable[[random.Random, int], dict[str, Any]]


def a_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth <= 0:
        return rng.choice(LEAVES)
    drawn: dict[str, Any] = {}
    for _ in range(rng.randrange(1, 4)):
        drawn |= rng.choice(KEYWORDS)(rng, depth - 1)
    return drawn


def _some(rng: random.Random, depth: int) -> list[Any]:
    return [a_schema(rng, depth) for _ in range(rng.randrange(1, 4))]


def _properties(rng: random.Random, depth: int) -> dict[str, Any]:
    named = {name: a_schema(rng, depth) for name in rng.sample(NAMES, rng.randrange(1, 4))}
    rest = {"additionalProperties": rng.choice([False, rng.choice(LEAVES)])}
    return {"properties": named} | (rest if rng.random() < 0.5 else {})


def _condition(rng: random.Random, depth: int) -> dict[str, Any]:
    branches = {key: a_schema(rng, depth) for key in ("then", "else") if rng.random() < 0.7}
    return {"if": a_schema(rng, min(depth, 1)), **branches}


def _contains(rng: random.Random, depth: int) -> dict[str, Any]:
    counts = {"minContains": rng.randrange(3), "maxContains": rng.randrange(1, 4)}
    kept = {key: count for key, count in counts.items() if rng.random() < 0.4}
    return {"contains": a_schema(rng, depth - 1), **kept}


def _counts(rng: random.Random, _: int) -> dict[str, Any]:
    counts = {"minProperties": rng.randrange(4), "maxProperties": rng.randrange(4)}
    return {key: count for key, count in counts.items() if rng.random() < 0.6}


KEYWORDS: list[Drawn] = [
    _properties,
    _properties,
    _condition,
    _contains,
    _counts,
    lambda rng, _: rng.choice(LEAVES),
    lambda rng, depth: {"not": a_schema(rng, min(depth, 1))},
    lambda rng, depth: {"oneOf": _some(rng, depth)},
    lambda rng, depth: {"anyOf": _some(rng, depth)},
    lambda rng, depth: {"allOf": _some(rng, depth)},
    lambda rng, _: {"dependentRequired": {rng.choice(NAMES): rng.sample(NAMES, 2)}},
    lambda rng, depth: {"dependentSchemas": {rng.choice(NAMES): a_schema(rng, depth)}},
    lambda rng, _: {"propertyNames": rng.choice(NAME_RULES)},
    lambda rng, _: {"unevaluatedProperties": rng.choice([False, rng.choice(LEAVES)])},
    lambda rng, _: {"unevaluatedItems": rng.choice([False, rng.choice(LEAVES)])},
    lambda rng, depth: {"prefixItems": _some(rng, depth)},
    lambda rng, depth: {"items": a_schema(rng, depth)},
    lambda rng, depth: {"patternProperties": {rng.choice(["^a", "b"]): a_schema(rng, depth)}},
    lambda _, __: {"$ref": "#/$defs/x"},
]


def a_value(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.random()
    if depth and kind < 0.4:
        return {
            name: a_value(rng, depth - 1) for name in rng.sample([*NAMES, "ab"], rng.randrange(3))
        }
    if depth and kind < 0.6:
        return [a_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return rng.choice([None, True, False, 0, 1, 2, -1, 1.5, "", "a", "b", "ab", "abc"])


def compared(seeds: range) -> tuple[int, int, int]:
    """How many schemas are served, how many values are valid, and how many of these are missed."""
    num_served = num_valid = num_missed = 0
    for seed in seeds:
        rng = random.Random(f"keywords {seed}")
        schema = a_schema(rng, 3) | {"$defs": {"x": a_schema(rng, 1)}}
        said = Said(schema)
        if said.problem is not None:
            continue
        num_served += 1
        validator = jsonschema_rs.Draft202012Validator(schema)
        for value in (a_value(rng) for _ in range(30)):
            is_valid, is_said = validator.is_valid(value), said.value(value)
            assert is_valid or not is_said, (schema, value)
            num_valid += is_valid
            num_missed += is_valid and not is_said
    return num_served, num_valid, num_missed


def test_a_hundred_random_schemas_say_what_is_valid_and_nothing_else() -> None:
    num_served, num_valid, num_missed = compared(range(100))
    assert num_served >= 30
    assert num_missed <= num_valid / 1000


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(3))
def test_many_random_schemas_say_what_is_valid_and_nothing_else(part: int) -> None:
    num_served, num_valid, num_missed = compared(range(1000 + 500 * part, 1500 + 500 * part))
    assert num_served >= 150
    assert num_missed <= num_valid / 1000
