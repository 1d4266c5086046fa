"""DeepSeek: calls between markers, the name before the arguments; V3 fences them, V3.1 does not."""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.formats.tools.format import Block, Blocks, Format, Writer
from app.formats.tools.json_calls import Call, read_arguments
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE = "\n```json\n"


def _read(source: Source) -> Reading[None]:
    while opened := (yield from source.text_until(_ALL, _CALL)):
        if opened == _ALL:
            yield from source.skip_space()
            yield from source.take(_CALL)
        if not (yield from _read_call(source)):
            source.as_text()


def _read_call(source: Source) -> Reading[bool]:
    name = yield from source.name()
    if not (yield from source.take(_SEPARATOR)):
        return False
    if name in source.raws:
        return (yield from source.raw_call(name, ""))
    if (yield from source.skip_space()) != "{":  # what came was the kind of the call: "function"
        name = yield from source.name()
        if name in source.raws:
            return (yield from source.raw_call(name, "\n"))
        yield from source.skip_space()
        yield from source.take("```json")
        yield from source.skip_space()
    if name not in source.functions or (yield from source.peek()) != "{":
        return False
    source.begin_call(name)
    yield from read_arguments(source)
    for marker in ("```", _CALL_END, _ALL_END):
        yield from source.skip_space()
        yield from source.take(marker)
    return True


def _write(calls: Sequence[Call]) -> str:
    each = (
        f"{_CALL}{name}{_SEPARATOR}{json.dumps(arguments, ensure_ascii=False)}{_CALL_END}"
        for name, arguments in calls
    )
    return f"{_ALL}{''.join(each)}{_ALL_END}"


def _blocks(writer: Writer) -> Blocks:
    """Either version's calls: the model knows which it writes."""
    call, separator, end = map(writer.marker, (_CALL, _SEPARATOR, _CALL_END))

    def calls() -> str:
        one = writer.some(
            lambda shape: (
                f"{literal(shape.name)} {separator} {shape.json} {end} | "
                f'"function" {separator} {literal(shape.name + _FENCE)} {shape.json} '
                f'"\\n```" {end}'
            )
        )
        return writer.list(one, rf'"\n"? {call}')

    def frame(name: str) -> str:
        return f'({literal(name)} {separator} | "function" {separator} {literal(name)} "\\n")'

    whole = writer.or_raw(lambda: f"{calls()} {writer.marker(_ALL_END)}", frame)
    return Blocks(
        [
            Block(_ALL, f"{call} ({whole})"),
            Block(_CALL, writer.or_raw(calls, frame), usual=False),
        ]
    )


DEEPSEEK = Format(_read, _write, (_ALL, _ALL_END, _CALL, _SEPARATOR, _CALL_END), _blocks)
