"""The text of an answer as it comes, for readers that are written as if it were all there.

A reader is a generator: it yields where the text so far does not tell how to go on, and is resumed
once there is more of it. What it makes of a text does not depend on how the text was cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
Kind = Literal["text", "reasoning", "call", "arguments", "custom", "input"]

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.-]*")


class Part(msgspec.Struct, frozen=True):
    """More text, or more reasoning; or a call that begins, by its function's name, or by that of a
    custom tool; or more of its arguments' JSON, or of its input.
    """

    kind: Kind
    text: str


class Source:
    """What has come and was not read yet.

    `functions` are those that may be called, each by name with the JSON schema of its parameters;
    what `raws` are called with is no JSON, and ends the answer. `parts` is what was made of the
    text, for whoever feeds it to take. What is read while it `is_aside` is no part of the answer.
    """

    def __init__(
        self, functions: Mapping[str, Mapping[str, Any]], raws: Collection[str] = ()
    ) -> None:
        self.functions = functions
        self.raws = raws
        self.parts: list[Part] = []
        self.is_aside = False
        self._text = ""
        self._at = 0
        self._marked: int | None = None
        self._by_marker = False
        self._ended = False
        self._cut = False
        self._ran_out = False
        self._num_partial = 0
        """Characters at the end of which more had to be there, to be one that was looked for."""

    @property
    def is_cut(self) -> bool:
        """Whether the end has come where something had to follow, and has cut it off."""
        return self._cut and self._ran_out

    @property
    def holds(self) -> bool:
        """Whether some of the text is not told yet, but may be."""
        return self._marked is not None or self._at < len(self._text)

    def feed(self, text: str) -> None:
        """There is more text."""
        keep = self._at if self._marked is None else self._marked
        self._text = self._text[keep:] + text
        self._at -= keep
        if self._marked is not None:
            self._marked = 0

    def end(self, *, cut: bool = False) -> None:
        """There will be no more; what is `cut` might have gone on."""
        self._ended, self._cut = True, cut

    def emit(self, kind: Kind, text: str) -> None:
        """Make a part."""
        if text:
            self.parts.append(Part(kind, text))

    def mark(self) -> None:
        """What is read from here on may turn out to be plain text: `as_text` gives it back."""
        self._marked, self._by_marker = self._at, False

    def unmark(self) -> None:
        """What was read since `mark` is no text."""
        self._marked = None

    def begin_call(self, name: str) -> None:
        """What was read since `mark` is a call of this function."""
        self.unmark()
        self.emit("call", name)

    def raw_call(self, name: str, *frames: str, end: str = "") -> Reading[bool]:
        """Read a call of one of `raws`: behind one of `frames` all is its input, up to an `end`
        of all. Whether it is one, at least up to where it is cut.
        """
        is_framed = (yield from self.take(*frames)) in frames
        if not is_framed and not self.is_cut:
            return False
        self.begin_call(name)
        if is_framed:
            yield from self._told_to_end("input", end)
        return True

    def as_text(self) -> None:
        """What was read since `mark` is text; a marker, and what is cut behind it, is none."""
        assert self._marked is not None
        if self._by_marker and self.is_cut:
            self.drop()
        else:
            self.emit("text", self._text[self._marked : self._at])
            self._marked = None

    def as_text_unless(self, begun: re.Pattern[str]) -> None:
        """What was read since `mark` is text; or nothing, where it is cut and all of it is what
        `begun` finds: as much of a call as the beginning of a function's name, its group.
        """
        found = begun.fullmatch(self._text[self._marked :]) if self.is_cut else None
        if found is not None and any(name.startswith(found[1]) for name in self.functions):
            self.drop()
        else:
            self.as_text()

    def drop(self) -> None:
        """All that is left, and what was read since `mark`, is told nobody."""
        self._at, self._marked = len(self._text), None

    def peek(self) -> Reading[str]:
        """The next character, which stays; none at the end."""
        while self._at == len(self._text):
            if self._ended:
                self._ran_out = True
                return ""
            yield
        return self._text[self._at]

    def take(self, *literals: str) -> Reading[str]:
        """Read the first of these that comes next; none, and nothing is read, if no one does."""
        for literal in literals:
            while True:
                there = self._text[self._at : self._at + len(literal)]
                if there == literal:
                    self._at += len(literal)
                    return literal
                if not literal.startswith(there):
                    break
                if self._ended:
                    self._ran_out, self._num_partial = True, len(there)
                    break
                yield
        return ""

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read as many characters as `pattern`, a repeated class of them, matches."""
        taken: list[str] = []
        while (yield from self.peek()):
            taken.append(self.some(pattern))
            if self._at < len(self._text):
                break
        return "".join(taken)

    def some(self, pattern: re.Pattern[str]) -> str:
        """Read what `pattern` matches of the text that is there."""
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found.group()

    def name(self) -> Reading[str]:
        """Read a function's name, or as much as looks like one."""
        return self.run(_NAME)

    def skip_space(self) -> Reading[str]:
        """Read white space; returns the character behind it, which stays."""
        yield from self.run(_SPACE)
        return (yield from self.peek())

    def until(self, *literals: str) -> Reading[tuple[str, str]]:
        """Read the text before the first of these, and itself; all there is, and none, at the end.

        None of them may begin with another.
        """
        taken: list[str] = []
        while True:
            text, literal = self._before(literals)
            taken.append(text)
            if literal or self._ended:
                self._ran_out = not literal
                return "".join(taken), literal
            yield

    def text_until(self, *literals: str) -> Reading[str]:
        """The same, with the text before made parts as it comes; the one that it was is marked."""
        literal = yield from self.told_until("text", *literals)
        if literal:
            self._marked, self._by_marker = self._at - len(literal), True
        return literal

    def told_until(self, kind: Kind, *literals: str) -> Reading[str]:
        """Read up to the first of these and itself; what stands before it is made parts."""
        while True:
            text, literal = self._before(literals)
            self.emit(kind, text)
            if literal or self._ended:
                return literal
            yield

    def _told_to_end(self, kind: Kind, end: str) -> Reading[None]:
        """Read all there is, which is made parts as it comes, but for an `end` behind all else."""
        while True:
            kept = 0 if self._ended else self._begun((end,))
            if end and self._text.endswith(end, self._at):
                kept = len(end)
            told = len(self._text) - kept
            self.emit(kind, self._text[self._at : told])
            self._at = told
            if self._ended:
                self.drop()
                return
            yield

    def _before(self, literals: Sequence[str]) -> tuple[str, str]:
        """Read up to the first of `literals` and itself, or what certainly stands before it."""
        start = self._at
        found = [(at, one) for one in literals if (at := self._text.find(one, start)) >= 0]
        if found:
            at, literal = min(found)
            self._at = at + len(literal)
            return self._text[start:at], literal
        if not self._ended:
            self._at = len(self._text) - self._begun(literals)
            return self._text[start : self._at], ""
        end = len(self._text) - self._num_cut(literals)
        self._at = len(self._text)
        return self._text[start:end], ""

    def _num_cut(self, literals: Sequence[str]) -> int:
        """Characters at the end that are the beginning of a marker which was cut."""
        count = max(self._begun(literals), self._num_partial)
        is_marker = count > 1 and not self._text[-count].isalnum()
        return count if self._cut and is_marker else 0

    def _begun(self, literals: Sequence[str]) -> int:
        """Length of the longest end of the text that one of `literals` begins with."""
        longest = max(map(len, literals), default=1) - 1
        for length in range(min(len(self._text) - self._at, longest), 0, -1):
            end = self._text[-length:]
            if any(one.startswith(end) for one in literals):
                return length
        return 0
