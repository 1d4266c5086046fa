"""JSON behind a marker: Hermes and Qwen, Granite, Phi, Mistral."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.formats.tools.format import Block, Blocks, Format, Writer, json_call
from app.formats.tools.json_calls import Call, leave, read_arguments, read_calls, written
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal

_HERMES = ("<tool_call>", "</tool_call>")
_PHI, _TAG, _TAG_END = "functools", "<|tool_call|>", "<|/tool_call|>"
_MISTRAL, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def _reader(
    opening: Sequence[str],
    closing: Sequence[str] = (),
    take: Callable[[Source], Reading[bool]] = read_calls,
) -> Callable[[Source], Reading[None]]:
    def read(source: Source) -> Reading[None]:
        while (yield from source.text_until(*opening)):
            if (yield from take(source)):
                yield from leave(source, *closing)
            else:
                source.as_text()

    return read


def _read_listed_or_named(source: Source) -> Reading[bool]:
    """A list of objects, or each call's name and arguments."""
    if (yield from source.skip_space()) in "[{":
        return (yield from read_calls(source))
    name = yield from source.name()
    if (yield from source.take(_ID)):
        yield from source.name()
    yield from source.take(_ARGUMENTS)
    if name not in source.functions or (yield from source.skip_space()) != "{":
        return False
    source.begin_call(name)
    yield from read_arguments(source)
    return True


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


def _mistral_blocks(writer: Writer) -> Blocks:
    """A list, or where the model knows the marker of arguments, names before that."""
    calls = f'" "? "[" {_listed(writer)} "]"'
    if _ARGUMENTS in writer.tokens:
        named = writer.some(
            lambda shape: f"{literal(shape.name)} {writer.marker(_ARGUMENTS)} {shape.json}"
        )
        calls = f"{calls} | {writer.list(named, writer.marker(_MISTRAL))}"
    return Blocks([Block(_MISTRAL, calls)])


HERMES = Format(_reader(_HERMES[:1], _HERMES[1:]), _one_by_one, _HERMES, _hermes_blocks)
GRANITE = Format(_reader([_TAG]), lambda calls: f"{_TAG}{_array(calls)}", (_TAG,), _granite_blocks)
PHI = Format(
    _reader([_PHI, _TAG], [_TAG_END]),
    lambda calls: f"{_PHI}{_array(calls)}",
    (_PHI, _TAG, _TAG_END),
    _phi_blocks,
)
MISTRAL = Format(
    _reader([_MISTRAL], take=_read_listed_or_named),
    lambda calls: f"{_MISTRAL}{_array(calls)}",
    (_MISTRAL, _ID, _ARGUMENTS),
    _mistral_blocks,
)
