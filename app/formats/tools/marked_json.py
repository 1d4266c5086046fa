"""JSON behind a marker: Hermes and Qwen, Granite, Phi, Mistral."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.formats.tools.format import Block, Blocks, Format, Writer, json_call, raw_frame
from app.formats.tools.json_calls import Call, leave, read_arguments, read_calls, written
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal

_HERMES = ("<tool_call>", "</tool_call>")
_PHI, _TAG, _TAG_END = "functools", "<|tool_call|>", "<|/tool_call|>"
_MISTRAL, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_COMMA = '", "'


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
    if name in source.raws:
        return (yield from source.raw_call(name, _ARGUMENTS))
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

    def calls() -> str:
        call = rf'"\n" {writer.some(json_call)} "\n" {closing}'
        return writer.list(call, rf'"\n" {opening}')

    frame = raw_frame("")
    return Blocks([Block(_HERMES[0], writer.or_raw(calls, lambda name: rf'"\n" {frame(name)}'))])


def _granite_blocks(writer: Writer) -> Blocks:
    return Blocks([Block(_TAG, f'"[" {_listed(writer)}')])


def _phi_blocks(writer: Writer) -> Blocks:
    calls = _listed(writer)
    tagged = _listed(writer, writer.marker(_TAG_END))
    single = writer.or_raw(
        lambda: writer.some(lambda shape: json_call(shape).replace("{", "", 1)),
        lambda name: raw_frame("")(name).replace("{", "", 1),
    )
    return Blocks(
        [
            Block(f"{_PHI}[", calls, rf"/{_PHI}\s*\[/"),
            Block(f"{_PHI}{{", single, rf"/{_PHI}\s*\{{/", usual=False),
            Block(_TAG, f'"[" {tagged}'),
        ]
    )


def _listed(writer: Writer, end: str = "") -> str:
    """What stands in a list behind its bracket, to the `end` of a list of JSON."""
    calls = writer.or_raw(
        lambda: f'{writer.list(writer.some(json_call), _COMMA)} "]" {end}', raw_frame("]")
    )
    return f"({calls})"


def _mistral_blocks(writer: Writer) -> Blocks:
    """A list, or where the model knows the marker of arguments, names before that."""
    calls = f'" "? "[" {_listed(writer)}'
    if _ARGUMENTS in writer.tokens:
        calls = f"{calls} | {_named(writer)}"
    return Blocks([Block(_MISTRAL, calls)])


def _named(writer: Writer) -> str:
    def head(name: str) -> str:
        return f"{literal(name)} {writer.marker(_ARGUMENTS)}"

    def calls() -> str:
        named = writer.some(lambda shape: f"{head(shape.name)} {shape.json}")
        return writer.list(named, writer.marker(_MISTRAL))

    return writer.or_raw(calls, head)


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
