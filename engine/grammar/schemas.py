"""Keywords of JSON schemas that cannot be held, or that may cost too much."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from math import lcm
from typing import Any, Final

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties")
_DATA: Final = ("const", "enum", "default", "examples")
"""Behind these stand values, and no schemas."""
_BY_NAME: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Behind these stand schemas by name."""
_MOST: Final = 2**63
"""`llguidance` reads bounds from here on as the last number before."""
_MOST_EXACT: Final = 2**53
_LONG: Final = 1_000
MOST_REMAINDERS: Final = 50_000
"""A fifth of a second, and 40 MB; both grow as these do."""
_TOGETHER: Final = ("allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas")
"""What puts schemas together with those that they stand in."""

_PIECE: Final = re.compile(
    r"(?:\\[dws]|\\[^\w\s]|\[(?:\\[dws]|\\[^\w\s]|[^\\\[\]])+\]|[^\\^$|?*+()\[\]{}])"
    r"(?:(?P<open>[*+?])|\{(?P<least>[0-9]{1,3})(?P<comma>,(?P<most>[0-9]{0,3}))?\})?"
)
_MOST_BEHIND: Final = 12
"""Characters behind a piece of any length. What is read may be at each of them at once, and there
are as many states as sets of them."""


def bound_beyond(schema: Any) -> str | None:
    """The keyword of a bound that is beyond 64 bits, if there is one: it would not be held."""
    return next((key for key, inner in _keywords(schema) if _is_beyond(key, inner)), None)


def inexact_constant(schema: Any) -> str | None:
    """The keyword of a constant with a number that would not be held, if there is one: it is read
    as one of 53 bits."""
    found = ((key, inner) for key, inner in _keywords(schema) if key in ("const", "enum"))
    return next((key for key, inner in found if _has_inexact(inner)), None)


def _has_inexact(value: Any) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict | list):
            left += one.values() if isinstance(one, dict) else one
        elif isinstance(one, int) and (abs(one) >= _MOST or float(one) != one):
            return True
    return False


def has_too_many_remainders(schema: Any) -> bool:
    """Whether a `multipleOf` would take too many states, of which each remainder is one.

    `llguidance` makes them all before any bound of its own is looked at. Where schemas are put
    together, their numbers may be, too.
    """
    found = list(_keywords(schema))
    steps = [
        abs(Decimal(str(inner)))
        for key, inner in found
        if key == "multipleOf" and type(inner) in (int, float) and inner
    ]
    exponent = min((int(step.normalize().as_tuple().exponent) for step in steps), default=0)
    if any(_remainders(step) > MOST_REMAINDERS for step in steps):
        return True
    if not any(key in _TOGETHER for key, _ in found):
        return False
    return lcm(*(int(step.scaleb(-exponent)) for step in steps)) > MOST_REMAINDERS


def _remainders(step: Decimal) -> int:
    exponent = int(step.normalize().as_tuple().exponent)
    return int(step.scaleb(-min(exponent, 0)))


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """All that stands in a schema by a name, and in the schemas in it."""
    left: list[Any] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        if isinstance(value, dict):
            yield from value.items()
            left += (inner for key, inner in value.items() if key not in _DATA)


def tame(schema: Any) -> Any:
    """A schema without such bounds, and without expressions that might cost more than they seem."""
    return _without(schema, lambda key, value: _is_beyond(key, value) or _is_wild(key, value))


def cheap(schema: Any) -> Any:
    """A schema without any expression, or number, that might be too much; it allows more."""
    return _without(schema, _may_be_too_much)


def is_plain(pattern: str) -> bool:
    """Whether finding a pattern takes few states: pieces in a row, few behind one of any length."""
    end = len(pattern) - (pattern.endswith("$") and not pattern.endswith("\\$"))
    at, num_behind = (1, None) if pattern.startswith("^") else (0, 0)
    while at < end:
        piece = _PIECE.match(pattern, at, end)
        if piece is None:
            return False
        least, most = int(piece["least"] or 1), int(piece["most"] or 1)
        if num_behind is not None:
            num_behind += max(least, most)
        elif piece["open"] or (piece["comma"] and piece["most"] != piece["least"]):
            num_behind = 0
        at = piece.end()
    return (num_behind or 0) <= _MOST_BEHIND


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_beyond(key: str, value: Any) -> bool:
    return key in _BOUNDS and _is_number(value) and abs(value) >= _MOST


def _is_wild(key: str, value: Any) -> bool:
    if key == "patternProperties" and isinstance(value, dict):
        return not all(map(is_plain, value))
    return key == "pattern" and isinstance(value, str) and not is_plain(value)


def _may_be_too_much(key: str, value: Any) -> bool:
    if key in _BOUNDS or key in _LENGTHS:
        return _is_number(value) and abs(value) >= (_MOST_EXACT if key in _BOUNDS else _LONG)
    return key in ("pattern", "patternProperties", "format", "multipleOf")


def _without(schema: Any, drops: Callable[[str, Any], bool]) -> Any:
    """A schema, nested as deeply as a function's may be, without the keywords that one `drops`."""
    if isinstance(schema, list):
        return [_without(one, drops) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DATA:
            kept[key] = value
        elif drops(key, value):
            continue
        elif key in _BY_NAME and isinstance(value, dict):
            kept[key] = {name: _without(one, drops) for name, one in value.items()}
        else:
            kept[key] = _without(value, drops)
    return kept
