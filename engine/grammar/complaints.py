"""What is wrong with a grammar, in words for who wrote it: where, not at a place of a library's.

`llguidance` says what it minds of a schema, and not where that stands. The smallest part that it
minds by itself is it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_MOST_CHARACTERS: Final = 400
"""Of an error: the library repeats the grammar in some."""
_MOST_OF_PATH: Final = 200
_MOST_TRIED: Final = 64
"""Parts of a schema that are looked at, which may take a millisecond each."""
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""What has schemas by names of the author's."""
_POSITION: Final = re.compile(r"^at \d+\(\d+\): ")
_KEYS: Final = re.compile(r"Unimplemented keys: \[(.*?)\]")
_REGEX: Final = re.compile(r"^error: (.+)$", re.MULTILINE)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
Problem = str | None
ProblemOf = Callable[[Any], Problem]


def reason(message: str) -> str:
    """Of what the library says the part that tells what is wrong."""
    message = message.strip()
    if keys := _KEYS.search(message):
        names = ", ".join(f"'{name}'" for name in _QUOTED.findall(keys[1]))
        return f"{names} is not supported here"
    if "regex parse error" in message and (found := _REGEX.search(message)):
        return f"it is no regular expression: {found[1]}"[:_MOST_CHARACTERS]
    return _POSITION.sub("", message.partition("\n")[0])[:_MOST_CHARACTERS]


def located(schema: Any, problem: str, problem_of: ProblemOf) -> str:
    """The `problem` of a schema, with where it is if a part of it has one by itself."""
    path, left = "", _MOST_TRIED
    beside = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    part: Any = schema
    while True:
        for name, inner in _parts(part):
            if not left:
                break
            left -= 1
            if found := problem_of({**beside, **inner}):
                path, part, problem = f"{path}.{name}" if path else name, inner, found
                break
        else:
            break
        if not left:
            break
    if "regular expression" in problem and "pattern" in part:
        path = f"{path}.pattern" if path else "pattern"
    if len(path) > _MOST_OF_PATH:
        path = f"...{path[-_MOST_OF_PATH:]}"
    return f"{path}: {problem}"[:_MOST_CHARACTERS] if path else problem


def _parts(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas in a schema, with where they stand."""
    for key, value in schema.items():
        if isinstance(value, dict) and key in _NAMED:
            yield from ((f"{key}.{name}", one) for name, one in value.items() if _is_schema(one))
        elif isinstance(value, list):
            yield from ((f"{key}[{at}]", one) for at, one in enumerate(value) if _is_schema(one))
        elif _is_schema(value) and key not in ("const", "default", "example"):
            yield key, value


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict)
