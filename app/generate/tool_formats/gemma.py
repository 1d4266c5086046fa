"""Gemma: `call:NAME{key:value}` between markers, with a token where other languages have quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from app.generate.tool_formats.format import Format
from app.generate.tool_formats.json_calls import Call
from app.generate.tool_formats.source import Reading, Source

_OPENING = ("<start_function_call>", "<|tool_call>")
_CLOSING = ("<end_function_call>", "<tool_call|>")
_QUOTES = ("<escape>", '<|"|>', '"')
_NAME = re.compile(r"[\w.-]*")
_KEY = re.compile(r"[^:{}\[\],<>\"]*")
_MAX_DEPTH = 64


class _Malformed(Exception):
    """This is no value."""


def _read(source: Source) -> Reading[None]:
    while (yield from source.text_until(*_OPENING)):
        yield from source.skip_space()
        yield from source.take("call:")
        name = yield from source.run(_NAME)
        try:
            if name not in source.functions or (yield from source.peek()) != "{":
                raise _Malformed
            arguments = yield from _value(source, 0)
        except _Malformed:
            source.as_text()
            continue
        source.begin_call(name)
        source.emit("arguments", json.dumps(arguments, ensure_ascii=False))
        yield from source.skip_space()
        yield from source.take(*_CLOSING)


def _value(source: Source, depth: int) -> Reading[Any]:
    if depth > _MAX_DEPTH:
        raise _Malformed
    yield from source.skip_space()
    if (yield from source.take("{")):
        return dict((yield from _members(source, depth)))
    if (yield from source.take("[")):
        return (yield from _elements(source, depth))
    quote = yield from source.take(*_QUOTES)
    if quote:
        return (yield from _quoted(source, quote))
    text = (yield from source.run(_KEY)).strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _Malformed from None
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise _Malformed
    return value


def _members(source: Source, depth: int) -> Reading[list[tuple[str, Any]]]:
    members: list[tuple[str, Any]] = []
    while (yield from source.skip_space()) != "}":
        quote = yield from source.take(*_QUOTES)
        key = (yield from _quoted(source, quote)) if quote else (yield from source.run(_KEY))
        if not (yield from source.take(":")):
            raise _Malformed
        members.append((key.strip(), (yield from _value(source, depth + 1))))
        yield from source.skip_space()
        if not (yield from source.take(",")):
            break
    if not (yield from source.take("}")):
        raise _Malformed
    return members


def _elements(source: Source, depth: int) -> Reading[list[Any]]:
    elements: list[Any] = []
    while (yield from source.skip_space()) != "]":
        elements.append((yield from _value(source, depth + 1)))
        yield from source.skip_space()
        if not (yield from source.take(",")):
            break
    if not (yield from source.take("]")):
        raise _Malformed
    return elements


def _quoted(source: Source, quote: str) -> Reading[str]:
    text, ended = yield from source.until(quote)
    if not ended:
        raise _Malformed
    return text


def _write(calls: Sequence[Call]) -> str:
    return "".join(
        f"{_OPENING[0]}call:{name}{_written(arguments)}{_CLOSING[0]}" for name, arguments in calls
    )


def _written(value: Any) -> str:
    if isinstance(value, dict):
        members = (f"{key}:{_written(one)}" for key, one in value.items())
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return f"{_QUOTES[0]}{value}{_QUOTES[0]}" if isinstance(value, str) else json.dumps(value)


GEMMA = Format(_read, _write, (*_OPENING, *_CLOSING, *_QUOTES[:2]))
