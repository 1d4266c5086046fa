"""Whether no value can be valid by two schemas, as far as types, constants and names tell."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Final

from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    TYPES,
    Unheld,
    kind_of,
    names_of,
    object_of,
    types_of,
    values_of,
)

_DEEP: Final = 8
_ALTERNATIVES: Final = ("anyOf", "oneOf")


def all_disjoint(schemas: Sequence[Any], look: References) -> bool:
    """Whether any two of them are. Raises `Unheld` where too much is looked at."""
    return _are_told_apart(schemas, look) or all(
        are_disjoint(a, b, look) for a, b in itertools.combinations(schemas, 2)
    )


def _are_told_apart(schemas: Sequence[Any], look: References) -> bool:
    """Whether one property tells which of them an object may be valid by."""
    told = [_constants_by_name(schema, look) for schema in schemas]
    names = set(told[0]).intersection(*told[1:]) if told else set[str]()
    return any(
        sum(len(one[name]) for one in told) == len(set().union(*(one[name] for one in told)))
        for name in names
    )


def _constants_by_name(schema: Any, look: References) -> dict[str, set[str]]:
    """Of an object, the properties that must be there and be one of some constants."""
    try:
        parts = look.conjuncts(schema)
        if _kinds(parts) > {"object"} or "object" not in _kinds(parts):
            return {}
        asked = {name: look.conjuncts({"allOf": _named(parts, name)}) for name in _required(parts)}
    except Unheld:
        look.charge(None)
        return {}
    found = {name: _constants(inner) for name, inner in asked.items()}
    return {name: set.intersection(*constants) for name, constants in found.items() if constants}


def are_disjoint(a: Any, b: Any, look: References, depth: int = 0) -> bool:
    """Whether that can be told. Raises `Unheld` where too much is looked at."""
    try:
        left, right = look.conjuncts(a), look.conjuncts(b)
    except Unheld:
        look.charge(None)
        return False
    if _kinds(left).isdisjoint(_kinds(right)) or _differ(left, right) or _are_apart(left, right):
        return True
    if depth >= _DEEP:
        return False
    for some, other in ((left, b), (right, a)):
        for one in some:
            for key in _ALTERNATIVES:
                options = one.get(key) if isinstance(one, dict) else None
                if isinstance(options, list) and all(
                    are_disjoint(option, other, look, depth + 1) for option in options
                ):
                    return True
    if _kinds(left) & _kinds(right) != {"object"}:
        return False
    required = _required(left) | _required(right)
    return any(
        are_disjoint({"allOf": x}, {"allOf": y}, look, depth + 1)
        for name in sorted(required)
        if (x := _named(left, name)) and (y := _named(right, name))
    ) or any(False in _named(some, name) for some in (left, right) for name in required)


def _kinds(parts: list[Any]) -> set[str]:
    """The types of values that all `parts` may allow."""
    kinds = set(TYPES)
    for part in parts:
        if part is False:
            return set()
        if not isinstance(part, dict):
            continue
        if (named := types_of(part)) is not None:
            kinds &= {"number" if one == "integer" else one for one in named}
        if (values := values_of(part)) is not None:
            kinds &= {kind_of(value) for value in values}
    return kinds


def _differ(left: list[Any], right: list[Any]) -> bool:
    """Whether both are of constants, and have none in common."""
    return any(x.isdisjoint(y) for x in _constants(left) for y in _constants(right))


def _constants(parts: list[Any]) -> list[set[str]]:
    named = [values_of(part) for part in parts if isinstance(part, dict)]
    return [{_canonical(value) for value in values} for values in named if values is not None]


def _canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    """A constant with numbers that are equal written alike."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _are_apart(left: list[Any], right: list[Any]) -> bool:
    """Whether both are of numbers alone, and one's are all below the other's."""
    if (_kinds(left) & _kinds(right)) != {"number"}:
        return False
    return _is_below(left, right) or _is_below(right, left)


def _is_below(low: list[Any], high: list[Any]) -> bool:
    most = [(value, key[0] == "e") for key in _MOST for value in _numbers(low, key)]
    least = [(value, key[0] == "e") for key in _LEAST for value in _numbers(high, key)]
    return any(m < n or (m == n and (x or y)) for m, x in most for n, y in least)


_MOST: Final = ("maximum", "exclusiveMaximum")
_LEAST: Final = ("minimum", "exclusiveMinimum")


def _numbers(parts: list[Any], key: str) -> list[float]:
    found = [part.get(key) for part in parts if isinstance(part, dict)]
    return [one for one in found if isinstance(one, int | float) and not isinstance(one, bool)]


def _required(parts: list[Any]) -> set[str]:
    return {name for part in parts if isinstance(part, dict) for name in names_of(part, "required")}


def _named(parts: list[Any], name: str) -> list[Any]:
    """What the value of a property must be valid by; `False` is among it if there is none."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, dict):
            properties = object_of(part, "properties")
            if name in properties:
                found.append(properties[name])
            elif part.get("additionalProperties") is False and "patternProperties" not in part:
                found.append(False)
    return found
