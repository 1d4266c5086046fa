"""Calls as JSON objects, read while they are written: `{"name": ..., "arguments": {...}}`.

Arguments are told word for word, as soon as the function's name is known. What is not JSON ends
them: a marker in a string is the string's, a marker outside of one is no argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from app.formats.tools.source import Reading, Source

_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r"[\w\s.,:+-]*")
_SCALAR = re.compile(r"[\w.+-]*")
_CLOSING = re.compile(r"[\s}\]]*")
_MATCHING = {"{": "}", "[": "]"}
_ARGUMENTS = ("arguments", "parameters")

Call = tuple[str, dict[str, Any]]
"""A function's name, and its arguments."""


def read_calls(source: Source) -> Reading[bool]:
    """A call, or a list of them. Whether there was one; where there was none it is plain text."""
    if (yield from source.skip_space()) != "[":
        return (yield from read_call(source))
    yield from source.take("[")
    any_call = False
    while (yield from source.skip_space()) == "{":
        if not (yield from read_call(source, "]")):
            break
        any_call = True
        yield from source.skip_space()
        if not (yield from source.take(",")):
            break
    yield from source.skip_space()
    yield from source.take("]")
    return any_call


def read_call(source: Source, behind: str = "") -> Reading[bool]:
    """One call; whether it was one, at least up to the name of a function that there is.

    What is no JSON comes `behind` the object and a line's end, see `format.raw_frame`.
    """
    name, early = "", ""
    has_arguments = False
    if not (yield from source.take("{")):
        return False
    while (yield from source.skip_space()) == '"':
        key = yield from _string(source)
        yield from source.skip_space()
        if not (yield from source.take(":")):
            break
        yield from source.skip_space()
        if key == "name" and not name:
            name = yield from _string(source)
            if name not in source.functions:
                return False
            if name in source.raws:
                return (yield from source.raw_call(name, f"}}{behind}\n"))
            if early:
                source.begin_call(name)
                source.emit("arguments", early)
        elif key in _ARGUMENTS and not has_arguments:
            has_arguments = True
            if name:
                source.begin_call(name)
                yield from read_arguments(source)
            else:
                early = yield from _captured_arguments(source)
        elif not (yield from read_value(source, _ignore)):
            break
        yield from source.skip_space()
        if not (yield from source.take(",")):
            break
    is_whole = yield from source.take("}")
    if name and not has_arguments:
        if not is_whole and not source.is_cut:
            return False
        source.begin_call(name)
        source.emit("arguments", "{}" if is_whole else "")
    return bool(name)


def read_arguments(source: Source) -> Reading[None]:
    """The value of a call's arguments: an object, or a string that holds one, or nothing at all."""
    if (yield from source.peek()) == "{":
        yield from read_value(source, lambda text: source.emit("arguments", text))
    else:
        source.emit("arguments", (yield from _captured_arguments(source)))


def written(call: Call, key: str = "arguments") -> str:
    """A call as such an object."""
    name, arguments = call
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def leave(source: Source, *markers: str) -> Reading[None]:
    """Read what ends a call, and the brackets that models write once too often."""
    yield from source.run(_CLOSING)
    yield from source.take(*markers)


def _captured_arguments(source: Source) -> Reading[str]:
    taken: list[str] = []
    is_string = (yield from source.peek()) == '"'
    yield from read_value(source, taken.append)
    text = "".join(taken)
    if is_string:
        value = _decoded(text)
        text = value if isinstance(value, str) and value.lstrip().startswith("{") else ""
    return text if text.startswith("{") else "{}"


def _string(source: Source) -> Reading[str]:
    """A JSON string; an empty one where there is none."""
    taken: list[str] = []
    if (yield from source.peek()) == '"':
        yield from read_value(source, taken.append)
    value = _decoded("".join(taken))
    return value if isinstance(value, str) else ""


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_value(source: Source, show: Callable[[str], object]) -> Reading[bool]:
    """Any JSON value, shown as it is read; whether it came to its end."""
    first = yield from source.peek()
    if first == '"':
        return (yield from _quoted(source, show))
    if first not in _MATCHING:
        text = yield from source.run(_SCALAR)
        show(text)
        return bool(text)
    closing: list[str] = []
    while character := (yield from source.peek()):
        if character in _MATCHING:
            closing.append(_MATCHING[character])
        elif character == '"':
            if not (yield from _quoted(source, show)):
                return False
            continue
        elif character in "]}":
            if closing.pop() != character:
                return False
        else:
            text = source.some(_OUTSIDE)
            if not text:
                return False
            show(text)
            continue
        yield from source.take(character)
        show(character)
        if not closing:
            return True
    return False


def _quoted(source: Source, show: Callable[[str], object]) -> Reading[bool]:
    yield from source.take('"')
    show('"')
    while character := (yield from source.peek()):
        if character == '"':
            yield from source.take('"')
            show('"')
            return True
        if character == "\\":
            yield from source.take("\\")
            escaped = yield from source.peek()
            yield from source.take(escaped)
            show("\\" + escaped)
        else:
            show(source.some(_IN_STRING))
    return False


def _ignore(_: str) -> None: ...
