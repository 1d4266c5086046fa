"""What a schema does not allow, as a schema: of keywords for which there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from engine.grammar.keywords.disjoint import all_disjoint
from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    NOTES,
    TYPES,
    NoOpposite,
    Schema,
    absent,
    both,
    count_of,
    either,
    kind_of,
    names_of,
    object_of,
    types_of,
    values_of,
)

UNHELD: Final = (
    "is not supported here; it is of constants, types, bounds, lengths, 'properties', 'required'"
)
"""Behind a keyword, and what in it has no opposite."""
_MOST_CHARACTERS: Final = 400
"""Of the texts that a text may not be: what is made of them is longer by half its square."""
_MOST_EXACT: Final = 2**53
_BOUNDS: Final = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_LEAST: Final = {
    "minLength": ("string", "maxLength"),
    "minItems": ("array", "maxItems"),
    "minProperties": ("object", "maxProperties"),
}
_MOST: Final = {
    "maxLength": ("string", "minLength"),
    "maxItems": ("array", "minItems"),
    "maxProperties": ("object", "minProperties"),
}
_WITH_CONTAINS: Final = ("minContains", "maxContains")


def negated(schema: Any, look: References) -> Any:
    """What `schema` does not allow. Raises `NoOpposite`, or `Unheld`."""
    look.charge(None)
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict):
        raise NoOpposite("it is no schema")
    parts: list[Any] = []
    for key in schema:
        if key not in NOTES:
            parts += _OPPOSITES.get(key, _unknown(key))(schema, look)
    return either(parts)


_Opposites = Callable[[Schema, References], Iterable[Any]]


def _unknown(key: str) -> _Opposites:
    def refuse(_: Schema, __: References) -> Iterable[Any]:
        raise NoOpposite(f"'{key}'")

    return refuse


def _of_types(schema: Schema, _: References) -> Iterable[Any]:
    named = types_of(schema) or []
    if "integer" in named and "number" not in named:
        raise NoOpposite("the type 'integer'")
    left = [one for one in TYPES if one not in named]
    yield {"type": left} if left else False


def _of_values(schema: Schema, _: References) -> Iterable[Any]:
    values = values_of(schema)
    if values is None:
        raise NoOpposite("'enum'")
    kinds = {kind_of(value) for value in values}
    if kinds & {"array", "object"}:
        raise NoOpposite("'const' of a list or an object")
    yield {"type": [one for one in TYPES if one not in kinds]}
    if "boolean" in kinds:
        yield from ({"const": one} for one in (True, False) if not any(one is v for v in values))
    if "number" in kinds:
        yield from _other_numbers(value for value in values if kind_of(value) == "number")
    if "string" in kinds:
        texts = [value for value in values if isinstance(value, str)]
        yield {"type": "string", "pattern": other_than(texts)}


def _other_numbers(values: Iterable[float]) -> Iterable[Any]:
    numbers = sorted(set(values))
    if max(map(abs, numbers)) >= _MOST_EXACT:
        raise NoOpposite("a number beyond 53 bits")
    for least, most in zip([None, *numbers], [*numbers, None], strict=True):
        bounds = {"exclusiveMinimum": least, "exclusiveMaximum": most}
        yield {"type": "number"} | {key: one for key, one in bounds.items() if one is not None}


def other_than(texts: Iterable[str]) -> str:
    """A regular expression of any text but these. Raises `NoOpposite` for too many."""
    unsaid = set(texts)
    if sum(map(len, unsaid)) > _MOST_CHARACTERS:
        raise NoOpposite(f"texts of more than {_MOST_CHARACTERS} characters")
    following: dict[str, set[str]] = {}
    for text in unsaid:
        for at, character in enumerate(text):
            following.setdefault(text[:at], set()).add(character)
        following.setdefault(text, set())
    options = []
    for begun, characters in sorted(following.items()):
        listed = "".join(map(_spelled, sorted(characters)))
        other = f"[^{listed}](?s:.*)" if listed else "(?s:.+)"
        begin = "".join(map(_spelled, begun))
        options.append(begin + (other if begun in unsaid else f"(?:{other})?"))
    return f"^(?:{'|'.join(options)})$"


def _spelled(character: str) -> str:
    is_plain = character.isascii() and character.isalnum()
    return character if is_plain else f"\\x{{{ord(character):x}}}"


def _of_properties(schema: Schema, look: References) -> Iterable[Any]:
    required, properties = names_of(schema, "required"), object_of(schema, "properties")
    for name in dict.fromkeys((*properties, *required)):
        opposite = negated(properties.get(name, True), look)
        if name not in required:
            if opposite is not False:
                yield {"type": "object", "properties": {name: opposite}, "required": [name]}
        else:
            yield {"type": "object", "properties": {name: opposite}}


def _of_required(schema: Schema, look: References) -> Iterable[Any]:
    return () if "properties" in schema else _of_properties(schema, look)


def _of_bound(key: str) -> _Opposites:
    def opposite(schema: Schema, _: References) -> Iterable[Any]:
        value = schema[key]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise NoOpposite(f"'{key}'")
        yield {"type": "number", _BOUNDS[key]: value}

    return opposite


def _of_count(key: str) -> _Opposites:
    def opposite(schema: Schema, _: References) -> Iterable[Any]:
        count = count_of(schema, key) or 0
        if key in _MOST:
            kind, bound = _MOST[key]
            yield {"type": kind, bound: count + 1}
        elif count:
            kind, bound = _LEAST[key]
            yield {"type": kind, bound: count - 1}

    return opposite


def _of_first_items(schema: Schema, look: References) -> Iterable[Any]:
    first = schema["prefixItems"]
    if not isinstance(first, list):
        raise NoOpposite("'prefixItems'")
    for at, one in enumerate(first):
        opposite = negated(one, look)
        if opposite is not False:
            before: list[Any] = [True] * at
            yield {"type": "array", "prefixItems": [*before, opposite], "minItems": at + 1}


def _of_items(schema: Schema, look: References) -> Iterable[Any]:
    if "prefixItems" in schema or isinstance(schema["items"], list):
        raise NoOpposite("'items' behind others")
    yield {"type": "array", "contains": negated(schema["items"], look)}


def _of_contains(schema: Schema, look: References) -> Iterable[Any]:
    if any(key in schema for key in _WITH_CONTAINS):
        raise NoOpposite("a number of what it contains")
    yield {"type": "array", "items": negated(schema["contains"], look)}


def _of_all(schema: Schema, look: References) -> Iterable[Any]:
    return (negated(one, look) for one in _listed(schema, "allOf"))


def _of_any(schema: Schema, look: References) -> Iterable[Any]:
    yield both(*(negated(one, look) for one in _listed(schema, "anyOf")))


def _of_one(schema: Schema, look: References) -> Iterable[Any]:
    options = _listed(schema, "oneOf")
    if not all_disjoint(options, look):
        raise NoOpposite("'oneOf'")
    yield both(*(negated(one, look) for one in options))


def _listed(schema: Schema, key: str) -> list[Any]:
    if not isinstance(schema[key], list):
        raise NoOpposite(f"'{key}'")
    return list(schema[key])


def _of_not(schema: Schema, _: References) -> Iterable[Any]:
    yield schema["not"]


def _of_reference(schema: Schema, look: References) -> Iterable[Any]:
    yield negated(look.target(schema["$ref"]), look)


def _of_dependents(schema: Schema, _: References) -> Iterable[Any]:
    for name, others in object_of(schema, "dependentRequired").items():
        for other in others if isinstance(others, list) else ():
            yield {"type": "object", "required": [name], **absent([other])}


_OPPOSITES: Final[dict[str, _Opposites]] = {
    "type": _of_types,
    "const": _of_values,
    "enum": _of_values,
    "properties": _of_properties,
    "required": _of_required,
    "prefixItems": _of_first_items,
    "items": _of_items,
    "contains": _of_contains,
    "allOf": _of_all,
    "anyOf": _of_any,
    "oneOf": _of_one,
    "not": _of_not,
    "$ref": _of_reference,
    "dependentRequired": _of_dependents,
    **{key: _of_bound(key) for key in _BOUNDS},
    **{key: _of_count(key) for key in (*_LEAST, *_MOST)},
}
