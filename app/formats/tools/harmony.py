"""gpt-oss: a message to `functions.NAME`, in the channel that the header of it names, or before.

See OpenAI's "Harmony response format". What is reasoned is taken out before, see
`app.formats.reasoning.harmony`, which spells all calls alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from app.formats.tools.format import Block, Blocks, Format, Writer
from app.formats.tools.json_calls import Call, read_arguments
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import literal

CHANNEL, MESSAGE, CONSTRAIN, CALL = "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"
_WORDS_BEFORE = "commentary to=functions."
OPENING = f"{CHANNEL}{_WORDS_BEFORE}"
_EARLY = " to=functions."
_WORDS = re.compile(r"[\w\s]*")


def _read(source: Source) -> Reading[None]:
    while (yield from source.text_until(OPENING, _EARLY)):
        name = yield from source.name()
        if name not in source.functions or not (yield from _skip_header(source)):
            source.as_text()
            continue
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
    late = writer.some(lambda one: f"{literal(_WORDS_BEFORE + one.name)} {body} {one.json}")
    early = writer.some(lambda one: f'{literal(one.name)} {channel} "commentary" {body} {one.json}')
    calls = writer.list(late, f"{end} {channel}")
    return Blocks(
        [Block(CHANNEL, f"{calls} {end}?"), Block(_EARLY, f"{early} {end}?", usual=False)]
    )


HARMONY = Format(_read, _write, (CHANNEL, MESSAGE, CONSTRAIN, CALL), _blocks)
