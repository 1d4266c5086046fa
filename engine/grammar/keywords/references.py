"""A whole schema, in which `$ref` is looked up, and how much more may be made of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

from engine.grammar.keywords.words import BOUNDS, Schema, Unheld, values_of

_DEEP: Final = 32


@dataclass
class Work:
    """How many schemas and values may still be made, or compared."""

    left: int = 10_000
    """The default takes some hundredths of a second."""

    def charge(self, *parts: Any) -> None:
        """Raises `Unheld` where too much has been made."""
        for part in parts:
            self.left -= _size(part, self.left)
        if self.left <= 0:
            raise Unheld("its keywords make too much of each other")


class References:
    """What the rules of one schema share."""

    def __init__(self, root: Any, work: Work) -> None:
        self._root = root
        self.charge = work.charge
        objects = _objects(root)
        self._is_one = not any("$id" in one for one in objects if one is not root)
        """Whether a `#` is the same wherever it stands."""
        self.shared: dict[str, Schema] = {}
        """Definitions that were made, for what stands in more than one place."""
        self._fractions = sorted({one for part in objects for one in _fractions(part)})
        names = [name for one in objects if isinstance(name := one.get("$ref"), str)]
        self._steps = {step for name in names for step in name.split("/")[1:]}

    def share(self, name: str, schema: Schema) -> str | None:
        """A reference to a schema that is kept once; `None` where it would not be found."""
        known = self._root.get("$defs", {}) if isinstance(self._root, dict) else None
        if not self._is_one or not isinstance(known, dict) or name in known:
            return None
        self.shared[name] = schema
        return f"#/$defs/{name}"

    def has_fraction_near(self, number: float) -> bool:
        """Whether a bound or a constant that is not whole is less than 1 from a number."""
        at = bisect_right(self._fractions, number - 1)
        return at < len(self._fractions) and self._fractions[at] < number + 1

    def is_led_through(self, keyword: str) -> bool:
        """Whether a `$ref` may lead through a keyword, which must stay where it is then."""
        return keyword in self._steps

    def resolved(self, schema: Any) -> Any:
        """A schema itself, or what it refers to if it says nothing else. Raises `Unheld`."""
        for _ in range(_DEEP):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = self.target(schema["$ref"])
        raise Unheld("'$ref' leads too far")

    def target(self, name: Any) -> Any:
        """What a reference names. Raises `Unheld` if that is elsewhere, or nowhere."""
        self.charge(None)
        if not self._is_one or not isinstance(name, str) or name[:1] != "#":
            raise Unheld(f"'$ref' to {str(name)[:100]!r} cannot be followed")
        found = self._root
        for step in name[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                raise Unheld(f"'$ref' to {name[:100]!r} leads nowhere")
        if name[1:] and not name.startswith("#/"):
            raise Unheld(f"'$ref' to {name[:100]!r} cannot be followed")
        return found

    def conjuncts(self, schema: Any) -> list[Any]:
        """Schemas that hold together, one by one: its own, of `allOf`, and behind `$ref`."""
        found: list[Any] = []
        left, seen = [schema], set[str]()
        while left:
            self.charge(None)
            one = left.pop(0)
            found.append(one)
            if isinstance(one, dict):
                name = one.get("$ref")
                if isinstance(name, str) and name not in seen:
                    seen.add(name)
                    left.append(self.target(name))
                parts = one.get("allOf")
                left += parts if isinstance(parts, list) else []
        return found


def _objects(value: Any) -> list[Schema]:
    found: list[Schema] = []
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            found.append(one)
            left += one.values()
        elif isinstance(one, list):
            left += one
    return found


def _fractions(schema: Schema) -> list[float]:
    named = [schema.get(key) for key in BOUNDS]
    listed = [*named, *(values_of(schema) or ())]
    return [one for one in listed if isinstance(one, float) and not one.is_integer()]


def _size(value: Any, most: int) -> int:
    """How many values there are in it, if no more than `most`."""
    count, left = 0, [value]
    while left and count <= most:
        count += 1
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
    return count
