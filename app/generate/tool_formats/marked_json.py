"""JSON behind a marker: Hermes and Qwen, Granite, Phi."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.generate.tool_formats.format import Format
from app.generate.tool_formats.json_calls import Call, leave, read_calls, written
from app.generate.tool_formats.source import Reading, Source


def _reader(opening: Sequence[str], closing: Sequence[str]) -> Callable[[Source], Reading[None]]:
    def read(source: Source) -> Reading[None]:
        while (yield from source.text_until(*opening)):
            if (yield from read_calls(source)):
                yield from leave(source, *closing)
            else:
                source.as_text()

    return read


def _format(
    opening: Sequence[str], closing: Sequence[str], write: Callable[[Sequence[Call]], str]
) -> Format:
    return Format(_reader(opening, closing), write, (*opening, *closing))


def _array(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(written, calls))}]"


def _one_by_one(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{written(call)}\n</tool_call>" for call in calls)


HERMES = _format(["<tool_call>"], ["</tool_call>"], _one_by_one)
GRANITE = _format(["<|tool_call|>"], [], lambda calls: f"<|tool_call|>{_array(calls)}")
PHI = _format(
    ["functools", "<|tool_call|>"], ["<|/tool_call|>"], lambda calls: f"functools{_array(calls)}"
)
