"""gpt-oss: messages in channels, of which "analysis" is reasoning and "final" what is said.

See OpenAI's "Harmony response format". Calls stay in the text as one spelling has them; the format
of calls of the same name reads them.
"""

from __future__ import annotations

import re
from typing import Final

from app.formats.reasoning.parser import Spell
from app.formats.tools.harmony import CALL, CHANNEL, CONSTRAIN, EARLY, MESSAGE, OPENING
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import lacking

START = "<|start|>"
_END, _RETURN = "<|end|>", "<|return|>"
_ENDS: Final = (_END, _RETURN)
_ROLE = "assistant"
_WORDS = re.compile(r"[^<]*")
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")
_MARKERS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, CALL, *_ENDS)


class Harmony:
    """What reads it. A prompt ends where a message of the assistant's begins."""

    markers = _MARKERS
    openings = (CHANNEL,)

    def opened_by(self, _: str) -> tuple[int, str]:
        """No prompt begins a message's text."""
        return 0, ""

    def read(self, source: Source, _: str) -> Reading[None]:
        """See `ReasoningFormat`."""
        while (yield from source.peek()):
            source.is_aside = False
            source.mark()
            header = yield from _header(source)
            if header is None:
                source.as_text()
                return
            source.unmark()
            yield from _read_message(source, header)
            yield from _read_start(source)

    def preamble(self, _: str, spell: Spell, most_tokens: int | None = None) -> str:
        """See `ReasoningFormat`."""
        marks = CHANNEL, MESSAGE, CONSTRAIN, _END, START
        channel, message, constrain, end, start = map(spell, marks)
        analysis = f'{channel} "analysis" {message} thought {end} {start} "{_ROLE}"'
        final = f'{channel} "final" (" "? {constrain} "json")? {message}'
        limit = "" if most_tokens is None else f"[max_tokens={most_tokens}]"
        thought = f"thought{limit}: THOUGHT\nTHOUGHT: {lacking(*_ENDS, CALL)}"
        return f"preamble: ({analysis})? ({final})?\n{thought}"


def _header(source: Source) -> Reading[str | None]:
    """What stands before a message, its channel first; `None` where there is no channel."""
    words = [(yield from source.run(_WORDS))]
    if not (yield from source.take(CHANNEL)):
        return None
    while True:
        words.append((yield from source.run(_WORDS)))
        if (yield from source.take(MESSAGE, CONSTRAIN)) != CONSTRAIN:
            if source.is_cut:
                return ""  # of a message that never began
            return f"{words[1]} {words[0]} {' '.join(words[2:])}"


def _read_message(source: Source, header: str) -> Reading[None]:
    """A message up to its end."""
    recipient = _RECIPIENT.search(header)
    if header.startswith("analysis"):
        source.is_aside = True
        yield from source.told_until("reasoning", *_ENDS, CALL)
    elif recipient is not None:
        source.emit("text", f"{OPENING}{recipient[1]}{MESSAGE}")
        if recipient[1] in source.raws:  # whatever marks an end may stand in its text
            yield from source.told_until("text")
            return
        yield from source.told_until("text", *_ENDS, CALL)
        source.emit("text", CALL)
    elif (yield from _read_text(source)) == _RETURN:
        source.is_aside = True  # later prompts have another end there


def _read_text(source: Source) -> Reading[str]:
    """What is said, up to the marker that ends it; or all there is, where a call in it says so."""
    calls = [
        call
        for name in source.raws
        for call in (f"{OPENING}{name}{MESSAGE}", f"{EARLY}{name}{CHANNEL}commentary{MESSAGE}")
    ]
    ended = yield from source.told_until("text", *_ENDS, CALL, *calls)
    if ended in calls:
        source.emit("text", ended)
        yield from source.told_until("text")
    return ended


def _read_start(source: Source) -> Reading[None]:
    """Where the next message of the assistant's begins."""
    if (yield from source.take(START)):
        yield from source.take(_ROLE)
