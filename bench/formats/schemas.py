"""The schemas of `bench.formats.structured`."""

from __future__ import annotations

import json
from typing import Any, Final

from engine.api import Grammar

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_RECORDS: Final[list[dict[str, Any]]] = [
    {"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    {"title": _TEXT, "tags": {"type": "array", "items": _TEXT, "maxItems": 5}, "score": {}},
    {"kind": {"enum": ["wall", "door", "window", "roof"]}, "width_mm": {"type": "number"}},
    {"date": {"type": "string", "format": "date"}, "mail": {"type": "string", "format": "email"}},
    {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,6}$"}, "open": {"type": "boolean"}},
    {"who": {"anyOf": [_TEXT, {"type": "null"}]}, "why": {"type": "string", "maxLength": 200}},
    {"at": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}},
    {f"field_{number}": _TEXT for number in range(30)},
]
"""As clients ask for them: the properties of each, all required."""
NUM_KINDS: Final = len(_RECORDS)


def schema_of(number: int, num_records: int) -> dict[str, Any]:
    """An array of so many records at least, of each kind in turn."""
    properties = _RECORDS[number % len(_RECORDS)]
    record = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": num_records}


def grammar_of(number: int, num_records: int) -> Grammar:
    """What holds an answer to that."""
    return Grammar(kind="json_schema", source=json.dumps(schema_of(number, num_records)))
