"""Mistral: `[TOOL_CALLS]`, then a list of JSON objects, or each call's name and arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.formats.tools.format import Format
from app.formats.tools.grammar import Block, Blocks, Writer, json_call
from app.formats.tools.json_calls import Call, leave, read_arguments, read_calls, written
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_COMMA = '", "'
_NAME = re.compile(r"[\w.-]*")


def _read(source: Source) -> Reading[None]:
    while (yield from source.text_until(_CALLS)):
        first = yield from source.skip_space()
        is_call = yield from (read_calls if first in "[{" else _read_named)(source)
        if is_call:
            yield from leave(source)
        else:
            source.as_text()


def _read_named(source: Source) -> Reading[bool]:
    name = yield from source.run(_NAME)
    if (yield from source.take(_ID)):
        yield from source.run(_NAME)
    yield from source.take(_ARGUMENTS)
    if name not in source.functions or (yield from source.skip_space()) != "{":
        return False
    source.begin_call(name)
    yield from read_arguments(source)
    return True


def _write(calls: Sequence[Call]) -> str:
    return f"{_CALLS}[{', '.join(map(written, calls))}]"


def _blocks(writer: Writer) -> Blocks:
    """A list, or where the model knows the marker of arguments, names before that."""
    calls = f'" "? "[" {writer.list(writer.some(json_call), _COMMA)} "]"'
    if _ARGUMENTS in writer.tokens:
        named = writer.some(
            lambda shape: f"{literal(shape.name)} {writer.marker(_ARGUMENTS)} {shape.json}"
        )
        calls = f"{calls} | {writer.list(named, writer.marker(_CALLS))}"
    return Blocks([Block(_CALLS, calls)])


MISTRAL = Format(_read, _write, (_CALLS, _ID, _ARGUMENTS), _blocks)
