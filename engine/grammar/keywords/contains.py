"""`contains`, as alternatives of which place has such an item: one of the first few.

A list that goes on may have one further behind, which no alternative could tell; so it is held to
have its own soon.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

from engine.grammar.keywords.negation import UNHELD, negated
from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    ANY_BUT_LIST,
    NoOpposite,
    Schema,
    Unheld,
    count_of,
    either,
    narrowed,
    without,
)

MOST_PLACES: Final = 8
"""Where the items that `contains` asks for may be."""
_MOST_ALTERNATIVES: Final = 36
"""All begin alike, and are followed side by side."""
_KEYWORDS: Final = ("contains", "minContains", "maxContains")


def without_contains(schema: Schema, look: References) -> Schema:
    """`contains`, `minContains` and `maxContains`."""
    kept = without(schema, *_KEYWORDS)
    if "contains" not in schema:
        return kept
    item = schema["contains"]
    least, most = count_of(schema, "minContains"), count_of(schema, "maxContains")
    least = 1 if least is None else least
    if item is True or item == {}:
        bounds = {"minItems": least} | ({} if most is None else {"maxItems": most})
        return narrowed(
            kept, {key: value for key, value in bounds.items() if value or key[1] == "a"}
        )
    if least == 0 and most is None:
        return kept
    places = _places(kept, least, most)
    try:
        other = True if most is None else negated(item, look)
    except NoOpposite as problem:
        raise Unheld(f"'maxContains' of {problem} {UNHELD}") from None
    made = list(_alternatives(item, other, least, most, places))
    look.charge(made)
    return narrowed(kept, either([*made, ANY_BUT_LIST]))


def _places(schema: Schema, least: int, most: int | None) -> int:
    """Among how many places it can be told which have such items."""
    length = count_of(schema, "maxItems")
    places = MOST_PLACES if length is None else min(length, MOST_PLACES)
    while places > least and _number(places, least, most) > _MOST_ALTERNATIVES:
        places -= 1
    if _number(places, least, most) > _MOST_ALTERNATIVES:
        raise Unheld(f"'minContains' makes more than {_MOST_ALTERNATIVES} alternatives")
    return places


def _number(places: int, least: int, most: int | None) -> int:
    sizes = range(least, (least if most is None else min(most, places)) + 1)
    return sum(math.comb(places, size) for size in sizes)


def _alternatives(
    item: Any, other: Any, least: int, most: int | None, places: int
) -> Iterator[Any]:
    last = least if most is None else min(most, places)
    for size in range(least, last + 1):
        for chosen in itertools.combinations(range(places), size):
            length = chosen[-1] + 1 if chosen else 0
            first = [item if at in chosen else other for at in range(length)]
            yield {"type": "array"} | _list_of(first, other)


def _list_of(first: list[Any], other: Any) -> Schema:
    begun = {"prefixItems": first, "minItems": len(first)} if first else {}
    return begun if other is True else begun | {"items": other}
