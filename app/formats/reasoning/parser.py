"""What a format of reasoning is, and what takes reasoning out of an answer's text as it comes."""

from __future__ import annotations

from collections.abc import Callable, Collection
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

    @property
    def openings(self) -> tuple[str, ...]:
        """The markers that begin reasoning where an answer begins."""

    def opened_by(self, tail: str) -> tuple[int, str]:
        """How many characters at the end of a prompt belong to reasoning, and what has opened it.

        The latter is empty where the answer begins outside.
        """

    def read(self, source: Source, opened: str) -> Reading[None]:
        """Make parts of a source, "reasoning" and "text", up to where all that comes is text.

        While what is read belongs to neither, or to reasoning, the source `is_aside`.
        """

    def preamble(self, opened: str, spell: Spell, most_tokens: int | None = None) -> str:
        """What may stand before an answer that is held to a grammar, see `engine.api.Grammar`.

        Each text that is reasoned has `most_tokens`, where that is given.
        """


class ReasoningParser:
    """Sifts one answer, which a prompt has `opened` with a marker of the format, or not.

    White space around reasoning belongs to neither it nor the answer. What was made of a text does
    not depend on how it was cut, but for where reasoning stands between parts of the answer.
    """

    def __init__(self, form: ReasoningFormat, opened: str, raws: Collection[str] = ()) -> None:
        """An answer may end with a call of one of `raws`: see `Source`."""
        self.drops = False
        """Whether nothing of the last text is the answer's, nor may become so."""
        self.markers = form.markers
        """Special tokens that its text has to show."""
        self._source = Source({}, raws)
        self._reading = _all(form, self._source, opened)
        self._reasoning: list[str] = []
        self._is_inside = False
        """Whether reasoning was the last that came."""
        self._space = ""
        self._ended = False
        next(self._reading, None)

    @property
    def is_aside(self) -> bool:
        """Whether what has come last is reasoning, or a marker or white space beside it."""
        return self._source.is_aside

    @property
    def holds(self) -> bool:
        """Whether some of the text may turn out to be one or the other."""
        return self._source.holds

    def push(self, text: str) -> str:
        """What of more text is the answer's."""
        if not text:
            return ""
        self._source.feed(text)
        answer = self._sifted()
        self.drops = not answer and not self._source.holds
        return answer

    def finish(self, *, cut: bool = False) -> str:
        """What else is the answer's, given that there is no more text. Harmless when repeated."""
        if self._ended:
            return ""
        self._ended = True
        self._source.end(cut=cut)
        return self._sifted()

    def take(self) -> str:
        """What was reasoned since this was called last."""
        taken, self._reasoning = "".join(self._reasoning), []
        return taken

    def _sifted(self) -> str:
        next(self._reading, None)
        made, self._source.parts = self._source.parts, []
        answer: list[str] = []
        for part in made:
            if part.kind == "text":
                answer.append(part.text)
                self._is_inside, self._space = False, ""
            else:
                self._think(part.text)
        return "".join(answer)

    def _think(self, text: str) -> None:
        text = self._space + (text if self._is_inside else text.lstrip())
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._is_inside = True
            self._reasoning.append(shown)


def _all(form: ReasoningFormat, source: Source, opened: str) -> Reading[None]:
    yield from form.read(source, opened)
    yield from source.told_until("text")
