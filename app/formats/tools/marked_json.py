"""JSON behind a marker: Hermes and Qwen, Granite, Phi."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from app.formats.tools.format import Block, Blocks, Format, Writer, json_call
from app.formats.tools.json_calls import Call, leave, read_arguments, read_calls, written
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal


def _reader(opening: Sequence[str], closing: Sequence[str]) -> Callable[[Source], Reading[None]]:
    def read(source: Source) -> Reading[None]:
        while (yield from source.text_until(*opening)):
            if (yield from read_calls(source)):
                yield from leave(source, *closing)
            else:
                source.as_text()

    return read


def _array(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(written, calls))}]"


def _one_by_one(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{written(call)}\n</tool_call>" for call in calls)


def _hermes_blocks(writer: Writer) -> Blocks:
    opening, closing = map(writer.marker, _HERMES)
    call = rf'"\n" {writer.some(json_call)} "\n" {closing}'
    return Blocks([Block(_HERMES[0], writer.list(call, rf'"\n" {opening}'))])


def _granite_blocks(writer: Writer) -> Blocks:
    return Blocks([Block(_TAG, f'"[" {_listed(writer)} "]"')])


def _phi_blocks(writer: Writer) -> Blocks:
    calls = _listed(writer)
    single = writer.some(lambda shape: json_call(shape).replace("{", "", 1))
    return Blocks(
        [
            Block(f"{_PHI}[", f'{calls} "]"', rf"/{_PHI}\s*\[/"),
            Block(f"{_PHI}{{", single, rf"/{_PHI}\s*\{{/", usual=False),
            Block(_TAG, f'"[" {calls} "]" {writer.marker(_TAG_END)}'),
        ]
    )


def _listed(writer: Writer) -> str:
    return writer.list(writer.some(json_call), '", "')


_HERMES = ("<tool_call>", "</tool_call>")
_PHI, _TAG, _TAG_END = "functools", "<|tool_call|>", "<|/tool_call|>"

HERMES = Format(_reader(_HERMES[:1], _HERMES[1:]), _one_by_one, _HERMES, _hermes_blocks)
GRANITE = Format(
    _reader([_TAG], []), lambda calls: f"{_TAG}{_array(calls)}", (_TAG,), _granite_blocks
)
PHI = Format(
    _reader([_PHI, _TAG], [_TAG_END]),
    lambda calls: f"{_PHI}{_array(calls)}",
    (_PHI, _TAG, _TAG_END),
    _phi_blocks,
)


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
