"""Schemas without what cannot be held: no more is dropped, wherever it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.api import Grammar
from engine.grammar.schemas import bound_beyond, cheap, is_plain, tame
from engine.grammar.source import problem_of


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
    assert problem == "'maximum' is beyond 64 bits, and cannot be held"
    assert bound_beyond({"maximum": 2**63 - 1}) is None
