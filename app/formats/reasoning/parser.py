"""Takes what a model reasons out of an answer's text as it comes."""

from __future__ import annotations

from app.formats.reasoning.format import ReasoningFormat
from app.formats.tools.source import Reading, Source


class ReasoningParser:
    """Sifts one answer, which a prompt has `opened` with a marker of the format, or not.

    White space around reasoning belongs to neither it nor the answer. What was made of a text does
    not depend on how it was cut, but for where reasoning stands between parts of the answer.
    """

    def __init__(self, form: ReasoningFormat, opened: str) -> None:
        self.drops = False
        """Whether nothing of the last text is the answer's, nor may become so."""
        self.markers = form.markers
        """Special tokens that its text has to show."""
        self._source = Source({})
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
