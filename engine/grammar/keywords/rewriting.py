"""A schema without keywords that `llguidance` does not know, as far as its own can say the same.

What cannot be said stays as it is, which `llguidance` refuses. So a schema in other words is
refused, or allows nothing that it did not allow before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from engine.grammar.keywords.conditions import (
    without_conditions,
    without_dependents,
    without_not,
)
from engine.grammar.keywords.contains import without_contains
from engine.grammar.keywords.counts import with_counted
from engine.grammar.keywords.expressions import in_rust
from engine.grammar.keywords.formats import FORMATS
from engine.grammar.keywords.names import without_names
from engine.grammar.keywords.numbers import LENGTHS, with_exact_bounds, with_whole_lengths
from engine.grammar.keywords.references import References, Work
from engine.grammar.keywords.unevaluated import (
    without_unevaluated_items,
    without_unevaluated_properties,
)
from engine.grammar.keywords.unions import without_one_of
from engine.grammar.keywords.words import (
    BOUNDS,
    NOTES,
    Schema,
    Unheld,
    narrowed,
    object_of,
    without,
)

_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE: Final = ("items", "additionalItems", "additionalProperties")

_STAY: Final = ("allOf", "oneOf", "pattern", "format", *LENGTHS, *BOUNDS)
"""Rules leave these where they are."""


def rewritten(schema: Any, work: Work) -> tuple[Any, str | None]:
    """It in other words, and why it is refused if a keyword of it cannot be held.

    Raises `RecursionError` for one that is nested too deeply.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"anyOf": [False]}
    problems: list[str] = []
    look = References(schema, work)
    words = _Rewriting(look, problems).of(schema)
    if look.shared:
        words = words | {"$defs": object_of(words, "$defs") | look.shared}
    return words, next(iter(problems), None)


class _Rewriting:
    def __init__(self, look: References, problems: list[str]) -> None:
        self._look = look
        self._problems = problems

    def of(self, schema: Any) -> Any:
        """What is made of one schema, and of those in it."""
        if not isinstance(schema, dict):
            return schema
        for keywords, rule in _RULES:
            if said := [key for key in keywords if key in schema]:
                try:
                    self._check_references(said)
                    schema = rule(schema, self._look)
                except Unheld as problem:
                    self._problems.append(str(problem))
                    if "oneOf" in said:
                        # What is made of alternatives may allow less, and look as if told apart.
                        schema = schema | {"oneOf": [True, True]}
        return {key: self._inner(key, value) for key, value in schema.items()}

    def _check_references(self, keywords: list[str]) -> None:
        for key in keywords:
            if key not in _STAY and self._look.is_led_through(key):
                raise Unheld(f"'{key}' cannot be held where a '$ref' leads into it")

    def _inner(self, key: str, value: Any) -> Any:
        if key in _BY_NAME and isinstance(value, dict):
            named = [in_rust(name) for name in value] if key == "patternProperties" else value
            return dict(zip(named, map(self.of, value.values()), strict=True))
        if key in _LISTED and isinstance(value, list):
            return [self.of(one) for one in value]
        return self.of(value) if key in _SINGLE else value


_TEXT: Final[Schema] = {"type": "string"}


def _with_own_format(schema: Schema, look: References) -> Schema:
    """Formats that are said better as patterns; once for all texts that have no more to them."""
    name = schema["format"]
    if not isinstance(name, str) or name not in FORMATS:
        return schema
    pattern, kept = f"^(?:{FORMATS[name]})$", without(schema, "format")
    kind = without(kept, *NOTES)
    if kind in ({}, _TEXT):
        shared = look.share("-".join(("format", name, *kind)), kind | {"pattern": pattern})
        return without(kept, "type") | {"$ref": shared} if shared else kept | {"pattern": pattern}
    if "pattern" in kept:
        return narrowed(kept, {"pattern": pattern})
    return kept | {"pattern": pattern}


def _with_rust_pattern(schema: Schema, _: References) -> Schema:
    pattern = schema["pattern"]
    return schema | {"pattern": in_rust(pattern)} if isinstance(pattern, str) else schema


def _without_unique(schema: Schema, _: References) -> Schema:
    if schema["uniqueItems"] is not False and schema.get("maxItems") not in (0, 1):
        raise Unheld("'uniqueItems' is not supported here: items are not compared")
    return without(schema, "uniqueItems")


_RULES: Final[tuple[tuple[tuple[str, ...], Callable[[Schema, References], Schema]], ...]] = (
    (LENGTHS, with_whole_lengths),
    (("unevaluatedProperties",), without_unevaluated_properties),
    (("unevaluatedItems",), without_unevaluated_items),
    (("if", "then", "else", "allOf"), without_conditions),
    (("dependentRequired", "dependentSchemas", "dependencies"), without_dependents),
    (("not",), without_not),
    (("oneOf",), without_one_of),
    (("contains", "minContains", "maxContains"), without_contains),
    (("propertyNames",), without_names),
    (("minProperties", "maxProperties"), with_counted),
    (("uniqueItems",), _without_unique),
    (("pattern",), _with_rust_pattern),
    (("format",), _with_own_format),
    (BOUNDS, with_exact_bounds),
)
"""By the keywords that they look at. What is evaluated is told before anything is added."""
