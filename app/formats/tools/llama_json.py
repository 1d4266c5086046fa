"""Llama 3: an answer that is JSON, or what follows `<|python_tag|>`; several behind semicolons."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.formats.tools.format import Block, Blocks, Format, Unwritable, Writer, json_call, raw_frame
from app.formats.tools.json_calls import Call, leave, read_calls, written
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import ANY_TEXT, BLANKS

_TAG = "<|python_tag|>"
_BEGUN = re.compile(rf'\s*[;,]?\s*(?:{re.escape(_TAG)})?\s*\[?\s*\{{\s*"name"\s*:\s*"?([\w.-]*)')


def _read(source: Source) -> Reading[None]:
    source.mark()
    yield from source.skip_space()
    yield from source.take(_TAG)
    yield from _read_all(source)
    while (yield from source.text_until(_TAG)):
        yield from _read_all(source)


def _read_all(source: Source) -> Reading[None]:
    while (yield from read_calls(source)):
        yield from leave(source)
        source.mark()
        yield from source.take(";", ",")
    source.as_text_unless(_BEGUN)


def _write(calls: Sequence[Call]) -> str:
    return "; ".join(written(call, "parameters") for call in calls)


def _blocks(writer: Writer) -> Blocks:
    """What begins like JSON is a call, unless an answer may be other JSON as well.

    Raises `Unwritable` where a call may begin with JSON that such an answer may be.
    """
    calls = _calls_beside_json(writer) if writer.beside_json else _calls(writer)
    starts_otherwise = rf"{ANY_TEXT} & ~/\s*(\[\s*)?\{{(?s:.*)/"
    return Blocks([Block("", calls), Block(_TAG, calls)], starts_otherwise)


def _calls(writer: Writer) -> str:
    def calls() -> str:
        return writer.list(writer.some(lambda shape: json_call(shape, "parameters")), '"; "')

    return writer.or_raw(calls, raw_frame(""))


def _calls_beside_json(writer: Writer) -> str:
    """With the blanks that JSON has: else what comes first would decide which of the two it is."""
    if writer.has_raw:
        raise Unwritable("this model's answers cannot be JSON beside texts that have a grammar")
    each = (
        rf'"{{" "\"name\"" ":" "\"{shape.name}\"" "," "\"parameters\"" ":" {shape.json} "}}"'
        for shape in writer.shapes
    )
    options = '%llguidance {"ignore_once": true}'
    calls = writer.list("call", '";"')
    rules = [options, f"%ignore {BLANKS}", f"start: {calls}", f"call: {' | '.join(each)}"]
    return "%lark {\n" + "\n".join(rules) + "\n}"


LLAMA = Format(_read, _write, (_TAG,), _blocks)
