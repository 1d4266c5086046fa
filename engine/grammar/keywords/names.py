"""`propertyNames`, as properties of these names and no others."""

from __future__ import annotations

from typing import Any, Final

from engine.grammar.keywords.formats import FORMATS
from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    NOTES,
    Schema,
    Unheld,
    absent,
    count_of,
    narrowed,
    types_of,
    values_of,
    without,
)

_NONE: Final[Schema] = {"additionalProperties": False}
_SHAPES: Final = ({"pattern"}, {"format"}, {"minLength"}, {"maxLength"}, {"minLength", "maxLength"})


def without_names(schema: Schema, look: References) -> Schema:
    """`propertyNames`."""
    try:
        part = _held(look.resolved(schema["propertyNames"]))
    except Unheld as problem:
        raise Unheld(f"'propertyNames': {problem}") from None
    return narrowed(without(schema, "propertyNames"), part)


def _held(names: Any) -> Any:
    """Objects with such names. Raises `Unheld`."""
    if isinstance(names, bool):
        return True if names else _NONE
    if not isinstance(names, dict):
        raise Unheld("it is no schema")
    said = without(names, *NOTES, "type")
    if "string" not in (types_of(names) or ["string"]):
        return _NONE
    if not said:
        return True
    if said.keys() in ({"enum"}, {"const"}):
        texts = [value for value in values_of(said) or () if isinstance(value, str)]
        return {"properties": dict.fromkeys(texts, True)} | _NONE
    if said.keys() == {"not"} and isinstance(said["not"], dict):
        unsaid = without(said["not"], *NOTES)
        if unsaid.keys() in ({"enum"}, {"const"}):
            return absent(text for text in values_of(unsaid) or () if isinstance(text, str))
    if said.keys() not in _SHAPES:
        raise Unheld("it is held with constants, one 'pattern', one 'format' or lengths alone")
    return {"patternProperties": {_pattern(said): True}} | _NONE


def _pattern(said: Schema) -> str:
    if "pattern" in said:
        return str(said["pattern"])
    if "format" in said:
        if said["format"] not in FORMATS:
            raise Unheld("of formats it is held with those of dates, times, e-mail and addresses")
        return f"^(?:{FORMATS[said['format']]})$"
    least, most = count_of(said, "minLength") or 0, count_of(said, "maxLength")
    return f"^(?s:.{{{least},{'' if most is None else most}}})$"
