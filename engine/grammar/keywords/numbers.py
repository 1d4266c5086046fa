"""Bounds that `llguidance` would round, as it reads numbers of 53 bits, and lengths such as 2.0."""

from __future__ import annotations

import math
from typing import Final, TypeGuard

from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import Schema

BOUNDS: Final = {
    "minimum": math.inf,
    "exclusiveMinimum": math.inf,
    "maximum": -math.inf,
    "exclusiveMaximum": -math.inf,
}
"""With which way they may be rounded."""
_EXCLUSIVE: Final = (
    ("exclusiveMinimum", ("maximum", "exclusiveMaximum"), math.inf),
    ("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -math.inf),
)
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


def with_exact_bounds(schema: Schema, _: References) -> Schema:
    """Bounds that are rounded so that they allow no more."""
    bounds = {key: _rounded(schema[key], way) for key, way in BOUNDS.items() if key in schema}
    for key, others, way in _EXCLUSIVE:
        bound, ends = bounds.get(key), [bounds.get(other) for other in others]
        if _is_number(bound) and bound == int(bound) and any(_is_near(bound, e) for e in ends):
            bounds[key] = bound + math.copysign(max(_LEAST, abs(bound) * _PART), way)
    return schema | bounds


def _is_near(bound: float, end: object) -> bool:
    """Whether a range is within one whole number: `llguidance` would allow the bound itself."""
    return _is_number(end) and abs(bound - end) < 1


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _rounded(bound: object, way: float) -> object:
    if not isinstance(bound, int) or isinstance(bound, bool) or abs(bound) >= _LAST:
        return bound
    read = float(bound)
    if (read > bound) == (way < 0) and read != bound:
        read = math.nextafter(read, way)
    return int(read)
