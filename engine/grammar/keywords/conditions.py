"""`if`, `not`, and what depends on a property, as alternatives that say what else is so.

`if C then T else E` is `C and T`, or `not C and E`. Conditions on one property's constants, as a
schema of several kinds has them, make an alternative each, and one of all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.grammar.keywords.negation import UNHELD, negated
from engine.grammar.keywords.references import References
from engine.grammar.keywords.words import (
    ANY_BUT_OBJECT,
    MOST_ALTERNATIVES,
    NOTES,
    NoOpposite,
    Schema,
    Unheld,
    absent,
    both,
    either,
    names_of,
    narrowed,
    object_of,
    values_of,
    without,
)

_CONDITIONAL: Final = ("if", "then", "else")


@dataclass(frozen=True)
class _Condition:
    condition: Any
    then: Any
    otherwise: Any

    @classmethod
    def of(cls, schema: Schema) -> _Condition:
        return cls(schema["if"], schema.get("then", True), schema.get("else", True))


def without_conditions(schema: Schema, look: References) -> Schema:
    """`if`, `then` and `else`, here and in parts of `allOf` that say no more."""
    if "if" not in schema:
        schema = without(schema, "then", "else")
    conditions = [_Condition.of(schema)] if "if" in schema else []
    kept = without(schema, *_CONDITIONAL)
    if isinstance(parts := schema.get("allOf"), list):
        conditions += (_Condition.of(part) for part in parts if _is_condition(part))
        # A '$ref' may count its places.
        kept = kept | {"allOf": [_is_condition(part) or part for part in parts]}
    conditions = [one for one in conditions if one.then is not True or one.otherwise is not True]
    if not conditions:
        return kept
    groups = _groups(kept, conditions)
    try:
        made = [_alternatives(kept, name, group, look) for name, group in groups]
    except NoOpposite as problem:
        raise Unheld(f"'if' of {problem} {UNHELD}") from None
    _check_number(made, "'if'")
    for options in made:
        kept = narrowed(kept, either(options))
    return kept


def _is_condition(part: Any) -> bool:
    return isinstance(part, dict) and "if" in part and part.keys() <= {*NOTES, *_CONDITIONAL}


def _check_number(made: Sequence[Sequence[Any]], keyword: str) -> None:
    if math.prod(map(len, made)) > MOST_ALTERNATIVES:
        raise Unheld(f"{keyword} makes more than {MOST_ALTERNATIVES} alternatives")


def _groups(
    schema: Schema, conditions: list[_Condition]
) -> list[tuple[str | None, list[_Condition]]]:
    """The conditions, those together that ask for constants of one property."""
    found: list[tuple[str | None, list[_Condition]]] = []
    by_name: dict[str, list[_Condition]] = {}
    for one in conditions:
        name = _asked(schema, one.condition)
        if name is None:
            found.append((None, [one]))
        elif name in by_name:
            by_name[name].append(one)
        else:
            by_name[name] = [one]
            found.append((name, by_name[name]))
    return found


def _asked(schema: Schema, condition: Any) -> str | None:
    """The property of which a condition asks for texts, and for no more."""
    if not isinstance(condition, dict):
        return None
    said = without(condition, *NOTES)
    properties = object_of(said, "properties")
    if not said.keys() <= {"type", "properties", "required"} or len(properties) != 1:
        return None
    [(name, value)] = properties.items()
    # What is no object has no properties that could be wrong, and none that it needs.
    is_object = schema.get("type") == "object"
    if said.get("type", "object" if is_object else None) != "object" or not isinstance(value, dict):
        return None
    required = names_of(said, "required")
    is_there = is_object and name in names_of(schema, "required")
    if set(required) - {name} or not (required or is_there):
        return None
    texts = values_of(value)
    is_texts = texts is not None and all(isinstance(one, str) for one in texts)
    asked = without(value, *NOTES)
    is_all = len(asked.keys() - {"type"}) == 1 and asked.get("type", "string") == "string"
    return name if is_texts and is_all else None


def _alternatives(
    schema: Schema, name: str | None, conditions: list[_Condition], look: References
) -> list[Any]:
    if name is None:
        [one] = conditions
        opposite = negated(one.condition, look)
        return [both(one.condition, one.then), both(opposite, one.otherwise)]
    asked = [
        dict.fromkeys(values_of(one.condition["properties"][name]) or ()) for one in conditions
    ]
    options: dict[tuple[int, ...], list[str]] = {}
    for text in dict.fromkeys(text for texts in asked for text in texts):
        true = tuple(at for at, texts in enumerate(asked) if text in texts)
        options.setdefault(true, []).append(text)
    made = []
    for true, texts in options.items():
        parts = [one.then if at in true else one.otherwise for at, one in enumerate(conditions)]
        look.charge(*(parts if len(conditions) > 1 else ()))
        made.append(both(_is_one_of(name, texts), *parts))
    every = [text for texts in options.values() for text in texts]
    rest = _is_none_of(schema, name, every, look)
    return [*made, both(rest, *(one.otherwise for one in conditions))]


def _is_none_of(schema: Schema, name: str, texts: list[str], look: References) -> Any:
    """Whatever else there is; of a property that is one of some constants, the others of them."""
    described = look.resolved(object_of(schema, "properties").get(name, True))
    known = values_of(described) if isinstance(described, dict) else None
    if known is None:
        return negated(_is_one_of(name, texts), look)
    others = [one for one in known if one not in texts]
    left = {
        "type": "object",
        **({"properties": {name: {"enum": others}}} if others else absent([name])),
    }
    return either([left, ANY_BUT_OBJECT])


def _is_one_of(name: str, texts: list[str]) -> Schema:
    return {"type": "object", "properties": {name: {"enum": texts}}, "required": [name]}


def without_not(schema: Schema, look: References) -> Schema:
    """`not`."""
    try:
        return narrowed(without(schema, "not"), negated(schema["not"], look))
    except NoOpposite as problem:
        raise Unheld(f"'not' of {problem} {UNHELD}") from None


def without_dependents(schema: Schema, _: References) -> Schema:
    """`dependentRequired`, `dependentSchemas` and `dependencies`: it is absent, or more is so."""
    made: list[list[Any]] = []
    keywords = [key for key in _DEPENDENT if key in schema]
    for key in keywords:
        for name, more in object_of(schema, key).items():
            if isinstance(more, list):
                more = {"required": [name, *more]} if more else True
            if more not in (True, {}):
                made.append([absent([name]), both({"required": [name]}, more)])
    _check_number(made, f"'{keywords[0]}'")
    kept = without(schema, *keywords)
    for options in made:
        kept = narrowed(kept, either(options))
    return kept


_DEPENDENT: Final = ("dependentRequired", "dependentSchemas", "dependencies")
