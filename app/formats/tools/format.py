"""What a format of calls is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.formats.tools.grammar import Blocks, Writer
from app.formats.tools.json_calls import Call
from app.formats.tools.source import Reading, Source


@dataclass(frozen=True)
class Format:
    """How calls stand in an answer's text.

    `read` makes parts of all of a source. `markers` are what a tokenizer may have as special tokens
    and would not show. `write` is for models whose template does not write calls itself. `grammar`
    holds answers to calls; where there is none they cannot be held.
    """

    read: Callable[[Source], Reading[None]]
    write: Callable[[Sequence[Call]], str]
    markers: tuple[str, ...] = ()
    grammar: Callable[[Writer], Blocks] | None = None
