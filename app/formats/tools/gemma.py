"""Gemma: `call:NAME{key:value}` between markers, with a token where other languages have quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.formats.tools.format import (
    Block,
    Blocks,
    Format,
    Shape,
    Writer,
    allows_only,
    as_object,
    joined,
    members,
    texts_of,
)
from app.formats.tools.json_calls import Call
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import ANY_TEXT, lacking, literal

_OPENING = ("<start_function_call>", "<|tool_call>")
_CLOSING = ("<end_function_call>", "<tool_call|>")
_QUOTES = ("<escape>", '<|"|>', '"')
_KEY = re.compile(r"[^:{}\[\],<>\"]*")
_COMMA = '","'
_PLAIN_KEY = re.compile(r"[\w.-]+")
_MAX_DEPTH = 64


class _Malformed(Exception):
    """This is no value."""


def _read(source: Source) -> Reading[None]:
    while (yield from source.text_until(*_OPENING)):
        yield from source.skip_space()
        yield from source.take("call:")
        name = yield from source.name()
        if name in source.raws and (yield from source.raw_call(name, *map(_raw_frame, _QUOTES))):
            return
        if name not in source.functions or (yield from source.peek()) != "{":
            source.as_text()
            continue
        try:
            arguments = yield from _value(source, 0)
        except _Malformed:
            if source.is_cut:
                source.begin_call(name)
            else:
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
        yield from source.skip_space()
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


def _blocks(writer: Writer) -> Blocks:
    """In the words of either version; a model has the tokens of one."""
    return Blocks(
        [_block(writer, *words) for words in zip(_OPENING, _CLOSING, _QUOTES, strict=False)]
    )


def _block(writer: Writer, opening: str, closing: str, quote: str) -> Block:
    values = _Values(writer, quote)

    def calls() -> str:
        call = writer.some(
            lambda shape: f"{literal(f'call:{shape.name}')} {values.arguments(shape)}"
        )
        return writer.list(f"{call} {writer.marker(closing)}", writer.marker(opening))

    def frame(name: str) -> str:
        return f"{literal(f'call:{name}' + _raw_frame(''))} {writer.marker(quote)}"

    return Block(opening, writer.or_raw(calls, frame))


def _raw_frame(quote: str) -> str:
    """What stands between a name and a text that is written as it is."""
    return f"{{input:{quote}"


class _Values:
    """What schemas allow, with this for a quote. What has no native way is JSON without escapes."""

    def __init__(self, writer: Writer, quote: str) -> None:
        self._writer = writer
        self._quote = quote
        self._mark = writer.marker(quote)

    def arguments(self, shape: Shape) -> str:
        """Those of a call."""
        return self._value(shape.schema, shape)

    def _value(self, schema: Mapping[str, Any], shape: Shape) -> str:
        kind = schema.get("type")
        texts = schema.get("enum")
        if isinstance(texts, list) and allows_only(schema, ["type", "enum"]):
            if all(isinstance(one, str) and self._quote not in one for one in texts):
                return f"({' | '.join(map(self._quoted, map(literal, texts)))})"
        elif kind == "string" and allows_only(schema, ["type"]):
            return self._text()
        elif kind == "array" and allows_only(schema, ["type", "items"]):
            item = self._inner(schema.get("items"), shape)
            return f'"[" ({item} ("," {item})*)? "]"'
        elif kind == "object" and self._is_native(schema):
            every = members(schema, shape, lambda _: True)
            each = [
                (f"{literal(f'{one.key}:')} {self._value(one.schema, shape)}", one.required)
                for one in every
            ]
            return f'"{{" {joined(self._writer, each, _COMMA)} "}}"'
        return self._writer.json(schema, strict=shape.strict, escapes="")

    def _inner(self, schema: object, shape: Shape) -> str:
        return self._value({**shape.definitions, **as_object(schema)}, shape)

    def _text(self) -> str:
        if self._quote not in self._writer.tokens:
            return f"{self._mark} {self._writer.lazy(f'{ANY_TEXT} {literal(self._quote)}')}"
        return self._quoted(self._writer.terminal(lacking(*_QUOTES[:2])))

    def _quoted(self, text: str) -> str:
        return f"{self._mark} {text} {self._mark}"

    def _is_native(self, schema: Mapping[str, Any]) -> bool:
        closed = schema.get("additionalProperties") in (None, False)
        plain = allows_only(schema, ["type", "properties", "required", "additionalProperties"])
        keys = [*as_object(schema.get("properties")), *texts_of(schema.get("required"))]
        return plain and closed and bool(keys) and all(map(_PLAIN_KEY.fullmatch, keys))


GEMMA = Format(_read, _write, (*_OPENING, *_CLOSING, *_QUOTES[:2]), _blocks)
