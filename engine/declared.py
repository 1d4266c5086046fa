"""What a field of a configuration is declared to be: choices, range, and what is said of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

AUTO: Final = Meta(extra={"none": "auto"})
"""`None` is written `auto`: what suits the model and the machine."""
Count = Annotated[int, Meta(ge=1)]
AutoCount = Annotated[Count | None, AUTO]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

_LIMITS: Final = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"),
}


class Declared(msgspec.Struct, frozen=True):
    """A field, as its annotation and its default say; text in an annotation is its description.

    Its numbers are finite.
    """

    default: Any
    description: str
    choices: tuple[str, ...]
    """All that it may be, where they can be named."""
    limits: dict[str, float]
    """Of a number, as `msgspec.Meta` calls them."""
    is_auto: bool

    def check(self, name: str, value: Any) -> None:
        """Raise `ValueError`, naming the field, for a value that it may not have."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            raise ValueError(f"{name}: {value!r} is none of {', '.join(self.choices)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: must be finite")
        for limit, bound in self.limits.items():
            holds, words = _LIMITS[limit]
            if not holds(value, bound):
                raise ValueError(f"{name}: must be {words} {bound}")


@cache
def declared(kind: type[msgspec.Struct]) -> Mapping[str, Declared]:
    """The fields of a struct, by name."""
    return {field.name: _declared(field) for field in msgspec.structs.fields(kind)}


def _declared(field: msgspec.structs.FieldInfo) -> Declared:
    notes = list(_notes(field.type))
    metas = [note for note in notes if isinstance(note, Meta)]
    bounds = ((name, getattr(meta, name)) for meta in metas for name in _LIMITS)
    return Declared(
        default=field.default,
        description="".join(note for note in notes if isinstance(note, str)),
        choices=tuple(_choices(field.type)),
        limits={name: bound for name, bound in bounds if bound is not None},
        is_auto=AUTO in metas,
    )


def _notes(kind: Any) -> Iterator[object]:
    """What is said of a type, however deep."""
    yield from getattr(kind, "__metadata__", ())
    for part in get_args(kind):
        yield from _notes(part)


def _choices(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
        return
    for part in get_args(kind):
        yield from _choices(part)
