"""An answer's text as it comes, taken apart: what is said, and the functions that are called."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from app.formats.tools.format import Format
from app.formats.tools.input_text import InputText
from app.formats.tools.source import Part, Reading, Source


class ToolParser:
    """Reads one answer in a format, with the functions that may be called in it.

    White space between text and calls belongs to neither. What was made of a text does not depend
    on how it was cut. Of calls there is one at most unless they may be `parallel`: `is_over` is
    then set where another one begins. Where they are `required` nothing else is said. Of the
    functions `texts` are custom tools, which take a text, and `raws` those of them whose text is
    not written as JSON.
    """

    def __init__(
        self,
        form: Format,
        functions: Mapping[str, Mapping[str, Any]],
        parallel: bool = True,
        required: bool = False,
        texts: Collection[str] = (),
        raws: Collection[str] = (),
    ) -> None:
        self.is_over = False
        self.markers = form.markers
        """Special tokens that its text has to show."""
        self._parallel = parallel
        self._required = required
        self._texts = texts
        self._input: InputText | None = None
        """That of the last call, if it is a custom tool's."""
        self._source = Source(functions, raws)
        self._reading = _all(form, self._source)
        self._num_calls = 0
        self._space = ""
        self._after_call = False
        self._ended = False

    @property
    def has_whole_input(self) -> bool:
        """Whether the last call's text is known to have come to its end, if it has one in JSON."""
        return self._input is not None and self._input.is_whole

    def push(self, text: str) -> list[Part]:
        """What more text tells."""
        self._source.feed(text)
        return self._parts()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """What the text tells, given that it is whole, or `cut`. Harmless when repeated.

        A call that is cut before its name is known is not told.
        """
        if self._ended:
            return []
        self._ended = True
        self._source.end(cut=cut)
        after_call = self._after_call
        parts = self._parts()
        if cut and self._required:
            parts, self._space = [part for part in parts if part.kind != "text"], ""
        follows = parts[-2].kind != "text" if len(parts) > 1 else after_call
        if follows and self._begins_marker(parts[-1:]):
            parts.pop()
        if self._space and not self._num_calls:
            parts.append(Part("text", self._space))
        return parts

    def _begins_marker(self, parts: list[Part]) -> bool:
        """Whether there is but the text of a marker that the answer's end has cut off."""
        return any(
            part.kind == "text" and marker.startswith(part.text)
            for part in parts
            for marker in self.markers
        )

    def _parts(self) -> list[Part]:
        if self.is_over:
            return []
        next(self._reading, None)
        made, self._source.parts = self._source.parts, []
        return list(_joined(self._tidied(made)))

    def _tidied(self, parts: list[Part]) -> Iterator[Part]:
        """The parts without the white space beside calls, and without calls that must not be."""
        for part in parts:
            if part.kind == "text":
                yield from self._said(part.text)
                continue
            if part.kind == "call":
                if self._num_calls and not self._parallel:
                    self.is_over = True
                    return
                self._num_calls += 1
                self._after_call = True
                self._input = InputText() if part.text in self._texts else None
            self._space = ""
            yield from self._of_call(part)

    def _of_call(self, part: Part) -> Iterator[Part]:
        """A call's part, in the words of what it calls."""
        if self._input is None or part.kind == "input":
            yield part
        elif part.kind == "call":
            yield Part("custom", part.text)
        elif text := self._input.push(part.text):
            yield Part("input", text)

    def _said(self, text: str) -> Iterator[Part]:
        if self._after_call:
            text = text.lstrip()
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._after_call = False
            yield Part("text", shown)


def _all(form: Format, source: Source) -> Reading[None]:
    yield from form.read(source)
    yield from source.text_until()


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    """Neighbours that go on with each other as one."""
    last: Part | None = None
    for part in parts:
        if last is not None and last.kind == part.kind and part.kind not in ("call", "custom"):
            last = Part(part.kind, last.text + part.text)
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last
