"""Bounds that `llguidance` would round, as it reads numbers of 53 bits, and lengths such as 2.0."""

from __future__ import annotations

import math
from typing import Final, TypeGuard

from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import BOUNDS, Schema

_WAYS: Final = dict(zip(BOUNDS, (math.inf, math.inf, -math.inf, -math.inf), strict=True))
"""Which way bounds may be rounded."""
_EXCLUSIVE: Final = {"exclusiveMinimum", "exclusiveMaximum"}
_LEAST: Final = 1e-15
_PART: Final = 1e-13
"""How far from such a bound numbers begin: what is next to it has too many digits."""
_LAST: Final = 2**63 - 1
"""The last of 64 bits is read as it is."""

LENGTHS: Final = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)


def with_whole_lengths(schema: Schema, _: References) -> Schema:
    """Lengths that JSON knows as integers, written as such."""
    lengths = {key: schema[key] for key in LENGTHS if key in schema}
    return schema | {key: int(one) for key, one in lengths.items() if _is_whole_float(one)}


def _is_whole_float(length: object) -> TypeGuard[float]:
    return isinstance(length, float) and length.is_integer()


def with_exact_bounds(schema: Schema, look: References) -> Schema:
    """Bounds that are rounded so that they allow no more.

    Of a range that lies between two whole numbers `llguidance` would allow the one that an
    exclusive bound is, wherever the other bound stands.
    """
    bounds = {key: _rounded(schema[key], way) for key, way in _WAYS.items() if key in schema}
    for key in bounds.keys() & _EXCLUSIVE:
        bound = bounds[key]
        if _is_number(bound) and bound == int(bound) and look.has_fraction_near(bound):
            bounds[key] = bound + math.copysign(max(_LEAST, abs(bound) * _PART), _WAYS[key])
    return schema | bounds


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rounded(bound: object, way: float) -> object:
    if not isinstance(bound, int) or isinstance(bound, bool) or abs(bound) >= _LAST:
        return bound
    read = float(bound)
    if (read > bound) == (way < 0) and read != bound:
        read = math.nextafter(read, way)
    return int(read)
