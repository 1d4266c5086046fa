"""`minProperties` and `maxProperties` beside properties that need not be there: `llguidance` counts
where all that have names must be, so each alternative says which of them are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    ANY_BUT_OBJECT,
    MOST_ALTERNATIVES,
    Schema,
    Unheld,
    absent,
    both,
    count_of,
    either,
    names_of,
    narrowed,
    object_of,
)

_COUNTS: Final = ("minProperties", "maxProperties")


def with_counted(schema: Schema, look: References) -> Schema:
    """The counts stay, and which of the properties are there is told beside them."""
    least, most = (count_of(schema, key) for key in _COUNTS)
    required = names_of(schema, "required")
    names = [name for name in _known(schema, look) if name not in required]
    if not names or (not least and most is None):
        return schema
    least = max(0, (least or 0) - len(set(required)))
    most = None if most is None else max(0, most - len(set(required)))
    sizes = _sizes(len(names), least, most, is_closed=_is_closed(schema))
    if sum(math.comb(len(names), size) for size in sizes) > MOST_ALTERNATIVES:
        keyword = next(key for key in _COUNTS if key in schema)
        more = f"makes more than {MOST_ALTERNATIVES} alternatives"
        raise Unheld(f"'{keyword}' beside {len(names)} properties that may lack {more}")
    made = list(_alternatives(names, least, most, sizes))
    look.charge(made)
    return narrowed(schema, either(made or [ANY_BUT_OBJECT]))


def _known(schema: Schema, look: References) -> list[str]:
    """All properties with names, here and in what holds together with it."""
    try:
        parts = look.conjuncts(schema)
    except Unheld:
        parts = [schema]
    listed = (object_of(part, "properties") for part in parts if isinstance(part, dict))
    return list(dict.fromkeys(name for part in listed for name in part if part[name] is not False))


def _is_closed(schema: Schema) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _sizes(count: int, least: int, most: int | None, *, is_closed: bool) -> range:
    """How many of the properties with names an alternative may have. The last, if there is no
    bound above, stands for more, too."""
    first = min(least, count) if is_closed else 0
    last = min(least if most is None else most, count)
    return range(first, last + 1)


def _alternatives(names: list[str], least: int, most: int | None, sizes: range) -> Iterator[Any]:
    for size in sizes:
        for there in itertools.combinations(names, size):
            required = {"required": list(there)} if there else True
            if most is None and size == least:
                yield both(required)
            else:
                yield both(required, absent(name for name in names if name not in there))
