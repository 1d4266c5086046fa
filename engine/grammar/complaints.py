"""What is wrong with a grammar, in words for who wrote it: where, not at a place of a library's.

`llguidance` says what it minds of a schema, and not where that stands. The smallest part that it
minds by itself is it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from time import thread_time
from typing import Any, Final

NOTHING: Final = "nothing can be said that it allows"
TOO_MUCH: Final = "its keywords make too much of each other"
_MOST_CHARACTERS: Final = 400
"""Of an error: the library repeats the grammar in some."""
_MOST_OF_PATH: Final = 200
_MOST_TRIED: Final = 64
"""Parts of a schema that are looked at, which usually take a millisecond each."""
_MOST_TRYING_SECONDS: Final = 0.25
"""Of a thread, before the last of them."""
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""What has schemas by names of the author's."""
_POSITION: Final = re.compile(r"^at \d+\(\d+\): ")
_KEYS: Final = re.compile(r"Unimplemented keys: \[(.*?)\]")
_REGEX: Final = re.compile(r"^error: (.+)$", re.MULTILINE)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_EXPRESSION: Final = "regular expression"
_TOGETHER: Final = "patterns, formats and lengths are too much together for one text"
_KEYWORDS: Final = {
    _EXPRESSION: ("pattern", "patternProperties"),
    _TOGETHER: ("allOf", "pattern", "format"),
}
"""Whose a problem may be that is told so."""
_NOWHERE: Final = "'$ref' leads nowhere: "
_RELATIVE: Final = (NOTHING, _NOWHERE)
"""What may be so of a part by itself, and not where it stands."""
_WORDS: Final = (
    (r"Unsatisfiable schema: schema is false", NOTHING),
    (
        r"Unsatisfiable schema: Regex is empty",
        f"{NOTHING}: its patterns, formats and lengths differ",
    ),
    (r"(?:Unsatisfiable schema: |^)(schema is false|incompatible types)", rf"{NOTHING}: \1"),
    (r"Unsatisfiable schema: (.+)", rf"{NOTHING}: \1"),
    (r"Unable to determine if regex is empty", _TOGETHER),
    (r"Unknown format: (.+)", r"'format' \1 is not supported here"),
    (r"Invalid type: (.+)", r"there is no 'type' \1"),
    (r"^oneOf constraints", "'oneOf' has some that one value may match together"),
    (
        r"^min/maxProperties only",
        "properties are not counted where some of those with names may lack",
    ),
    (
        r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
        r"'patternProperties' has '\1' and '\2', which one name may match together",
    ),
    (
        r"can't determine if patternProperty regexes /(.*)/ and /(.*)/ are disjoint",
        r"'patternProperties' has '\1' and '\2', which are too much to compare",
    ),
    (
        r"Resource '(?:json-schema:///)?(.*)' is not present",
        r"'$ref' to '\1' leads out of the schema",
    ),
    (r"Pointer '(.*)' does not exist", rf"{_NOWHERE}there is no '#\1'"),
    (r"Anchor '(.*)' does not exist", rf"{_NOWHERE}there is no '#\1'"),
    (
        r"circular references with sibling keys",
        "'$ref' leads back to itself, beside other keywords",
    ),
    (r"Schema intersection stack level", "'$ref' leads back to what it is put together with"),
    (r"^schema too large", TOO_MUCH),
    (r"Expected positive integer for (.+), got (.+)", r"\1 must be a whole number, and is \2"),
    (r"Expected f64 for (.+), got (.+)", r"\1 must be a number, and is \2"),
    (r"Expected (\w+) for (.+), got (.+)", r"\2 must be of the type \1, and is \3"),
    (r"^schema must be|Expecting object schema", "a schema must be an object or a boolean"),
    (r"^(\$?\w+) must be (an?) (.+)$", r"'\1' must be \2 \3"),
    (r"^invalid multiple of", "'multipleOf' must be above 0"),
    (
        r"initial lexer configuration|lexer precomputation failed|fuel exhausted|too many states",
        "its texts and expressions take too many states",
    ),
    (r"^grammar size", "it has too many rules"),
    (r"Current row has", "too much may follow in one place"),
    (r"recursion limit exceeded", "it is nested too deeply"),
    (
        r"lookarounds not supported yet",
        f"in {_EXPRESSION}s boundaries such as '\\\\b' are not supported",
    ),
)
"""What the library says, and what that is called here."""
Problem = str | None
ProblemOf = Callable[[Any], Problem]


def reason(message: str) -> str:
    """Of what the library says the part that tells what is wrong."""
    message = message.strip()
    if keys := _KEYS.search(message):
        names = [f"'{name}'" for name in _QUOTED.findall(keys[1])]
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not supported here"
    if "regex parse error" in message and (found := _REGEX.search(message)):
        is_served = "not supported" not in found[1]
        words = f"it is no {_EXPRESSION}: " if is_served else f"in {_EXPRESSION}s "
        return f"{words}{found[1]}"[:_MOST_CHARACTERS]
    message = _POSITION.sub("", message.partition("\n")[0])
    for said, words in _WORDS:
        if found := re.search(said, message):
            return found.expand(words)[:_MOST_CHARACTERS]
    return message[:_MOST_CHARACTERS]


def located(schema: Any, problem: str, problem_of: ProblemOf) -> str:
    """The `problem` of a schema, with where it is if a part of it has one by itself."""
    path, left, began = "", _MOST_TRIED, thread_time()
    beside = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    part: Any = schema
    while True:
        for name, inner in _parts(part):
            if not left:
                break
            left = left - 1 if thread_time() - began < _MOST_TRYING_SECONDS else 0
            found = problem_of({**beside, **inner})
            if found and _may_be_of_all(found, problem):
                path, part, problem = f"{path}.{name}" if path else name, inner, found
                break
        else:
            break
        if not left:
            break
    for said, keywords in _KEYWORDS.items():
        if said in problem:
            keyword = next((key for key in keywords if key in part), "")
            path = ".".join(filter(None, (path, keyword)))
    if len(path) > _MOST_OF_PATH:
        path = f"...{path[-_MOST_OF_PATH:]}"
    return f"{path}: {problem}"[:_MOST_CHARACTERS] if path else problem


def _may_be_of_all(found: str, problem: str) -> bool:
    """Whether what is wrong with a part may be what is wrong with the schema."""
    return all(problem.startswith(one) for one in _RELATIVE if found.startswith(one))


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
