"""Schemas without what cannot be held: no more is dropped, wherever it stands."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from engine.api import Grammar
from engine.grammar.schemas import bound_beyond, cheap, is_plain, tame
from engine.grammar.source import held, problem_of


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^[A-C]{2,3}$",
        r"^\d{4}-\d{2}-\d{2}$",
        r"^[a-zA-Z0-9_.-]{1,64}$",
        r"^[^@ ]+@[^@ ]+\.[a-z]+$",
        "[x-z1]",
        r"^a\$",
        r"\.py$",
    ],
)
def test_plain_patterns_are_kept(pattern: str) -> None:
    assert is_plain(pattern)
    assert tame({"pattern": pattern}) == {"pattern": pattern}
    assert problem_of(Grammar(kind="json_schema", source=json.dumps({"pattern": pattern}))) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(a)\\1",
        "^(?=a)b$",
        "(x+x+)+y",
        "^([a-z]{1,50}){1,50}$",
        "^.*a.{14}$",
        "a.{14}",
        "^[a-z]{1,64}[a-z0-9]{1,64}$",
        "^.{0,3000}$",
        "a|b",
        r"\bfoo",
        "(",
        "[",
    ],
)
def test_others_are_not(pattern: str) -> None:
    assert not is_plain(pattern)
    assert tame({"pattern": pattern, "minLength": 1}) == {"minLength": 1}
    assert tame({"patternProperties": {pattern: {}}}) == {}


def test_what_only_looks_like_a_keyword_stays() -> None:
    schema: dict[str, Any] = {
        "properties": {"pattern": {"type": "string"}, "maximum": {"enum": [{"maximum": 2**70}]}},
        "const": {"pattern": "("},
    }
    assert tame(schema) == cheap(schema) == schema
    assert bound_beyond(schema) is None


@pytest.mark.parametrize("bound", [2**63, -(2**63), 1e30])
def test_bounds_beyond_64_bits_are_told_and_dropped(bound: float) -> None:
    schema = {"anyOf": [{"properties": {"a": {"type": "integer", "maximum": bound}}}]}
    assert bound_beyond(schema) == "maximum"
    assert tame(schema) == {"anyOf": [{"properties": {"a": {"type": "integer"}}}]}
    problem = problem_of(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert problem == "anyOf[0].properties.a: 'maximum' is beyond 64 bits, and cannot be held"
    assert bound_beyond({"maximum": 2**63 - 1}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9_999_991},
        {"type": "integer", "multipleOf": -9_999_991},
        {"type": "number", "multipleOf": 1.000_001},
        {"properties": {"n": {"type": "number", "multipleOf": 10**400}}},
        {"type": "integer", "allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]},
    ],
    ids=["large", "negative", "fine", "huge", "together"],
)
def test_a_step_of_too_many_remainders_is_refused_before_any_is_made(
    schema: dict[str, object],
) -> None:
    began = time.thread_time()
    problem = problem_of(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert str(problem).removeprefix("properties.n: ") == (
        "'multipleOf' may have 50000 remainders at most"
    )
    assert time.thread_time() - began < 0.1


def test_a_step_is_refused_within_a_lark_grammar_too() -> None:
    source = 'start: "x" %json {"type": "integer", "multipleO\\u0066": 9999991}'
    problem = problem_of(Grammar(kind="lark", source=source))
    assert problem == "'multipleOf' may have 50000 remainders at most"


@pytest.mark.parametrize("step", [0.01, 0.25, 1000, 3600])
def test_a_usual_step_is_held_beside_others(step: float) -> None:
    others = {"a": {"type": "integer", "multipleOf": 7919}, "b": {"type": "number"}}
    schema = {"properties": {**others, "n": {"type": "number", "multipleOf": step}}}
    assert problem_of(Grammar(kind="json_schema", source=json.dumps(schema))) is None


def test_a_length_of_2_0_is_two_and_one_of_a_half_is_refused() -> None:
    schema = {"items": {"maxLength": 2.0}, "maxItems": 3e0, "const": {"maxItems": 2.0}}
    made = json.loads(held(json.dumps(schema)))
    assert repr(made) == "{'items': {'maxLength': 2}, 'maxItems': 3, 'const': {'maxItems': 2.0}}"
    assert problem_of(Grammar(kind="json_schema", source='{"maxItems": 2.0}')) is None
    assert "'maxItems'" in str(problem_of(Grammar(kind="json_schema", source='{"maxItems": 2.5}')))
