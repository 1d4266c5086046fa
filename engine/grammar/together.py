"""How many expressions of a schema `allOf` and `$ref` put together for one value.

`llguidance` asks of such whether any text matches them all, in a time that doubles with each, and
looks at no bound of its own meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

MOST_TOGETHER: Final = 12
"""Patterns of one value: 10 ms. Twenty take more than a second, and 24 most of a minute."""
_MOST_STEPS: Final = 100_000
"""Schemas looked at, some of them again: a quarter of a second."""
_SAYS_NOTHING: Final = frozenset(
    ("$ref", "$defs", "definitions", "title", "description", "default", "examples", "deprecated")
)
"""Beside a `$ref` these put nothing together."""
_DEEP: Final = 12
_MOST_OF_PATH: Final = 200
_ANY_NAME: Final = ("additionalProperties", "unevaluatedProperties")
_ANY_PLACE: Final = "items"
_Groups = dict[tuple[str, str], list[Any]]


class _TooMany(Exception):
    """Of the patterns of a value, or of the schemas that were looked at: the message says which."""


def crowded(schema: Any) -> str | None:
    """Where in a schema too many patterns come together, in words; `None` if nowhere."""
    return _Look(schema).problem()


class _Look:
    """One look at a schema, which ends by itself: `$ref` may lead round, or to much."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._left = _MOST_STEPS

    def problem(self) -> str | None:
        for path, part in _all_parts(self._root):
            try:
                if self._joins(part):
                    self._check([part], 0)
            except _TooMany as problem:
                where = f"{path[-_MOST_OF_PATH:]}: " if path else ""
                keyword = "allOf" if "allOf" in part else "$ref"
                return f"{where}'{keyword}' puts {problem}"
            except RecursionError:
                return "it is nested too deeply"
        return None

    def _joins(self, part: dict[str, Any]) -> bool:
        return "allOf" in part or ("$ref" in part and not part.keys() <= _SAYS_NOTHING)

    def _check(self, group: list[Any], depth: int) -> None:
        """Raises `_TooMany` if a value that all of `group` hold for has too many patterns."""
        if sum(self._patterns(one, ()) for one in group) > MOST_TOGETHER:
            raise _TooMany(f"more than {MOST_TOGETHER} patterns together for one value")
        for inner in self._children(group, ()).values():
            # What leads back to itself meets itself again at each depth.
            if len(inner) > MOST_TOGETHER or (len(inner) > 1 and depth < _DEEP):
                self._check(inner, depth + 1)

    def _patterns(self, one: Any, seen: tuple[str, ...]) -> int:
        """Of a value itself; of alternatives, those of the one that has most."""
        if not isinstance(one, dict):
            return 0
        self._step()
        count = int("pattern" in one) + int("format" in one)
        for part, through in self._parts(one, seen):
            count += self._patterns(part, through)
        for branches in _alternatives(one):
            count += max((self._patterns(branch, seen) for branch in branches), default=0)
        return count

    def _children(self, group: list[Any], seen: tuple[str, ...]) -> _Groups:
        """What holds for each thing in the value, by what it is called there."""
        found: _Groups = defaultdict(list)
        for one in group:
            if isinstance(one, dict):
                self._step()
                self._collect(one, seen, found)
        for (kind, _), inner in found.items():
            wild = found.get((kind, ""), [])
            if inner is not wild:
                inner += wild
        return found

    def _collect(self, one: dict[str, Any], seen: tuple[str, ...], found: _Groups) -> None:
        for place, inner in _own_children(one):
            found[place].append(inner)
        for part, through in self._parts(one, seen):
            for place, inner in self._children([part], through).items():
                found[place] += inner
        for branches in _alternatives(one):
            either: _Groups = defaultdict(list)
            for branch in branches:
                for place, inner in self._children([branch], seen).items():
                    either[place].append({"allOf": inner})
            for place, inner in either.items():
                found[place].append({"anyOf": inner})

    def _parts(
        self, one: dict[str, Any], seen: tuple[str, ...]
    ) -> Iterator[tuple[Any, tuple[str, ...]]]:
        parts = one.get("allOf")
        if isinstance(parts, list):
            yield from ((part, seen) for part in parts)
        name = one.get("$ref")
        if isinstance(name, str) and name not in seen:
            yield self._resolved(name), (*seen, name)

    def _resolved(self, name: str) -> Any:
        found = self._root
        for step in name.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooMany("too many schemas together")


def _alternatives(one: dict[str, Any]) -> Iterator[list[Any]]:
    yield from (one[key] for key in ("anyOf", "oneOf") if isinstance(one.get(key), list))


def _own_children(one: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    if isinstance(named := one.get("properties"), dict):
        yield from ((("name", name), inner) for name, inner in named.items())
    if isinstance(named := one.get("patternProperties"), dict):  # one at most has a name
        yield ("name", ""), {"anyOf": list(named.values())}
    yield from ((("name", ""), one[key]) for key in _ANY_NAME if key in one)
    if isinstance(first := one.get("prefixItems"), list):
        yield from ((("place", str(at)), inner) for at, inner in enumerate(first))
    if _ANY_PLACE in one:
        yield ("place", ""), one[_ANY_PLACE]


def _all_parts(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects in a schema, with their paths."""
    left: list[tuple[str, Any]] = [("", schema)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            yield path, value
            left += [(f"{path}.{key}" if path else key, inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(f"{path}[{at}]", inner) for at, inner in enumerate(value)]
