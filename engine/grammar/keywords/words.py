"""What rules about keywords are written in: schemas put together, and a reason to refuse one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

Schema = dict[str, Any]

TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
NOTES: Final = frozenset(
    (
        *("$schema", "$comment", "$defs", "definitions", "title", "description", "default"),
        *("examples", "deprecated", "readOnly", "writeOnly", "contentEncoding"),
        *("contentMediaType", "contentSchema"),
    )
)
"""They allow and forbid nothing."""
ANY_BUT_LIST: Final[Schema] = {"type": [one for one in TYPES if one != "array"]}
ANY_BUT_OBJECT: Final[Schema] = {"type": [one for one in TYPES if one != "object"]}
BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
MOST_ALTERNATIVES: Final = 128
"""That keywords of one schema may make of it."""


class Unheld(Exception):
    """A keyword cannot be held: the message says why."""


class NoOpposite(Unheld):
    """What a schema does not allow cannot be said: the message names what has no opposite."""


def either(parts: Iterable[Any]) -> Any:
    """What any of these allows."""
    kept = [part for part in parts if part is not False]
    if not kept:
        return False
    if any(part is True for part in kept):
        return True
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def both(*parts: Any) -> Any:
    """What all of these allow, with the properties of the first ones first."""
    kept = [part for part in parts if part not in (True, {})]
    if any(part is False for part in kept):
        return False
    return (kept[0] if len(kept) == 1 else {"allOf": kept}) if kept else {}


def narrowed(schema: Schema, part: Any) -> Schema:
    """A schema that allows no more than `part`, too."""
    if part in (True, {}):
        return schema
    if isinstance(part, dict) and part.keys() == {"anyOf"} and "anyOf" not in schema:
        return schema | part
    beside = schema.get("allOf")
    return schema | {"allOf": [*(beside if isinstance(beside, list) else []), part]}


def without(schema: Schema, *keys: str) -> Schema:
    """A schema that lacks these."""
    return {key: value for key, value in schema.items() if key not in keys}


def absent(names: Iterable[str]) -> Schema:
    """Objects without these."""
    return {"properties": dict.fromkeys(names, False)}


def object_of(schema: Schema, key: str) -> Schema:
    """What stands behind a key, if that is an object."""
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def names_of(schema: Schema, key: str) -> list[str]:
    """The texts of a list behind a key."""
    value = schema.get(key)
    listed = value if isinstance(value, list) else []
    return [one for one in listed if isinstance(one, str)]


def types_of(schema: Schema) -> Sequence[str] | None:
    """The types that a schema names; `None` if it names none."""
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    return [str(one) for one in named] if isinstance(named, list) else None


def count_of(schema: Schema, key: str) -> int | None:
    """A count behind a key, if there is one. Raises `Unheld` for what is none."""
    value = schema.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Unheld(f"'{key}' is no whole number")
    return value


def values_of(schema: Schema) -> list[Any] | None:
    """The constants that a schema names; `None` if it names none."""
    if "const" in schema:
        return [schema["const"]]
    named = schema.get("enum")
    return named if isinstance(named, list) else None


def kind_of(value: Any) -> str:
    """The type of a constant."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
