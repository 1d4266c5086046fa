"""`oneOf` of alternatives that one value may be valid by together: by each, and by no other."""

from __future__ import annotations

from typing import Any

from engine.grammar.keywords.disjoint import all_disjoint, are_disjoint
from engine.grammar.keywords.negation import UNHELD, negated
from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    NoOpposite,
    Schema,
    Unheld,
    both,
    either,
    narrowed,
    without,
)


def without_one_of(schema: Schema, look: References) -> Schema:
    """`oneOf`."""
    options = schema["oneOf"]
    if not isinstance(options, list):
        return schema
    is_led_through = look.is_led_through("oneOf")
    if all_disjoint(options, look):
        return schema if is_led_through else narrowed(without(schema, "oneOf"), either(options))
    if is_led_through:
        raise Unheld("'oneOf' cannot be held where a '$ref' leads into it")
    try:
        made = [_alone(options, at, look) for at in range(len(options))]
    except NoOpposite as problem:
        some = "'oneOf' with alternatives that one value may match together"
        raise Unheld(f"{some}, of {problem}, {UNHELD}") from None
    return narrowed(without(schema, "oneOf"), either(made))


def _alone(options: list[Any], at: int, look: References) -> Any:
    """What is valid by one of `options`, and by none of the others."""
    others = [other for index, other in enumerate(options) if index != at]
    beside = [other for other in others if not are_disjoint(options[at], other, look)]
    return both(options[at], *(negated(other, look) for other in beside))
