"""`unevaluatedProperties` and `unevaluatedItems`, where what is evaluated depends on no value: as
`additionalProperties` and `items` beside the names and places that are.
"""

from __future__ import annotations

from typing import Any, Final

from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import Schema, Unheld, narrowed, object_of, without

_DEPENDS: Final = (
    *("anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"),
)
_JOINS: Final = ("allOf", "$ref")


def without_unevaluated_properties(schema: Schema, look: References) -> Schema:
    """`unevaluatedProperties`."""
    kept, rest = without(schema, "unevaluatedProperties"), schema["unevaluatedProperties"]
    if rest in (True, {}) or "additionalProperties" in kept:
        return kept
    parts = _parts(kept, look, "unevaluatedProperties")
    if any({"additionalProperties", "unevaluatedProperties"} & part.keys() for part in parts):
        return kept
    if not any(key in kept for key in _JOINS):
        return kept | {"additionalProperties": rest}
    names, patterns = (
        {name: True for part in parts for name in object_of(part, key)}
        for key in ("properties", "patternProperties")
    )
    known: Schema = {"properties": names} | ({"patternProperties": patterns} if patterns else {})
    return narrowed(kept, known | {"additionalProperties": rest})


def without_unevaluated_items(schema: Schema, look: References) -> Schema:
    """`unevaluatedItems`."""
    kept, rest = without(schema, "unevaluatedItems"), schema["unevaluatedItems"]
    if rest in (True, {}) or "items" in kept:
        return kept
    parts = _parts(kept, look, "unevaluatedItems")
    if any({"items", "unevaluatedItems"} & part.keys() for part in parts):
        return kept
    if any("contains" in part for part in parts):
        raise Unheld("'unevaluatedItems' cannot be told beside 'contains'")
    if not any(key in kept for key in _JOINS):
        return kept | {"items": rest}
    count = max((len(part.get("prefixItems", ())) for part in parts), default=0)
    first: list[Any] = [True] * count
    return narrowed(kept, ({"prefixItems": first} if first else {}) | {"items": rest})


def _parts(schema: Schema, look: References, keyword: str) -> list[Schema]:
    parts = [part for part in look.conjuncts(schema) if isinstance(part, dict)]
    for part in parts:
        if depends := [key for key in _DEPENDS if key in part]:
            raise Unheld(f"'{keyword}' depends on which part of '{depends[0]}' holds")
    return parts
