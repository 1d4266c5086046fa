"""What a format of reasoning is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.formats.tools.source import Reading, Source

Spell = Callable[[str], str]
"""How a marker stands in a grammar in Lark: as text, or as the control token that it is."""


class ReasoningFormat(Protocol):
    """How reasoning stands in an answer's text.

    A prompt may end with what begins an answer: `opened_by` tells how.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        """What a tokenizer may have as special tokens and would not show."""
        ...

    def opened_by(self, tail: str) -> tuple[int, str]:
        """How many characters at the end of a prompt belong to reasoning, and what has opened it.

        The latter is empty where the answer begins outside.
        """
        ...

    def read(self, source: Source, opened: str) -> Reading[None]:
        """Make parts of a source, "reasoning" and "text", up to where all that comes is text.

        While what is read belongs to neither, or to reasoning, the source `is_aside`.
        """
        ...

    def preamble(self, opened: str, spell: Spell) -> str:
        """What may stand before an answer that is held to a grammar, see `engine.api.Grammar`."""
        ...
