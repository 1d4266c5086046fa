"""Llama 3: an answer that is JSON, or what follows `<|python_tag|>`; several behind semicolons."""

from __future__ import annotations

from collections.abc import Sequence

from app.generate.tool_formats.format import Format
from app.generate.tool_formats.json_calls import Call, leave, read_calls, written
from app.generate.tool_formats.source import Reading, Source

_TAG = "<|python_tag|>"


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
    source.as_text()


def _write(calls: Sequence[Call]) -> str:
    return "; ".join(written(call, "parameters") for call in calls)


LLAMA = Format(_read, _write, (_TAG,))
