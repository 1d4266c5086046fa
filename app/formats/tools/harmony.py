"""gpt-oss: a message to `functions.NAME`, in the channel that the header of it names, or before.

See OpenAI's "Harmony response format". What is reasoned is taken out before, see
`app.formats.reasoning.harmony`, which spells all calls alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from app.formats.tools.format import Block, Blocks, Format, Unwritable, Writer
from app.formats.tools.json_calls import Call, read_arguments
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal

CHANNEL, MESSAGE, CONSTRAIN, CALL = "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"
_WORDS_BEFORE = "commentary to=functions."
OPENING = f"{CHANNEL}{_WORDS_BEFORE}"
EARLY = " to=functions."
_WORDS = re.compile(r"[\w\s]*")


def _read(source: Source) -> Reading[None]:
    while (yield from source.text_until(OPENING, EARLY)):
        name = yield from source.name()
        if name not in source.functions or not (yield from _skip_header(source)):
            source.as_text()
            continue
        if name in source.raws:
            yield from source.raw_call(name, "", end=CALL)
            return
        yield from source.skip_space()
        source.begin_call(name)
        yield from read_arguments(source)
        yield from source.skip_space()
        yield from source.take(CALL)


def _skip_header(source: Source) -> Reading[bool]:
    """Read up to where the message begins; whether it does."""
    while True:
        yield from source.run(_WORDS)
        marker = yield from source.take(MESSAGE, CHANNEL, CONSTRAIN)
        if marker in ("", MESSAGE):
            return bool(marker)


def _write(calls: Sequence[Call]) -> str:
    return "".join(
        f"{OPENING}{name}{MESSAGE}{json.dumps(arguments, ensure_ascii=False)}{CALL}"
        for name, arguments in calls
    )


def _blocks(writer: Writer) -> Blocks:
    """Behind a call, the token that ends it ends the answer, wherever it is a stop token."""
    channel, constrain, message, end = map(writer.marker, (CHANNEL, CONSTRAIN, MESSAGE, CALL))
    body = f'(" " {constrain}? "json")? {message}'

    def late() -> str:
        call = writer.some(lambda one: f"{literal(_WORDS_BEFORE + one.name)} {body} {one.json}")
        return f"{writer.list(call, f'{end} {channel}')} {end}?"

    def early() -> str:
        call = writer.some(
            lambda one: f'{literal(one.name)} {channel} "commentary" {body} {one.json}'
        )
        return f"{call} {end}?"

    def late_frame(name: str) -> str:
        return f"{literal(_WORDS_BEFORE + name)} {message}"

    def early_frame(name: str) -> str:
        return f'{literal(name)} {channel} "commentary" {message}'

    if writer.has_raw and CALL not in writer.tokens:
        raise Unwritable("only a token could tell the end of a text in which its words may stand")
    return Blocks(
        [
            Block(CHANNEL, writer.or_raw(late, late_frame, end)),
            Block(EARLY, writer.or_raw(early, early_frame, end), usual=False),
        ]
    )


HARMONY = Format(_read, _write, (CHANNEL, MESSAGE, CONSTRAIN, CALL), _blocks)
