"""Reasoning between two markers, at the beginning of an answer: `<think>...</think>`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.formats.reasoning.parser import Spell
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import ANY_TEXT, lacking, literal

_SPACE = r"/[ \n]{0,8}/"


@dataclass(frozen=True)
class Marked:
    """`pairs` has the markers that may close for each that opens, behind which a `label` stands.

    The answer may itself be `framed`. Where `begins_inside`, a prompt that shows no marker has
    opened the first.
    """

    pairs: Mapping[str, Sequence[str]]
    label: str = ""
    framed: tuple[str, str] | None = None
    begins_inside: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """See `ReasoningFormat`."""
        closings = (one for closings in self.pairs.values() for one in closings)
        return (*dict.fromkeys((*self.pairs, *closings)), *(self.framed or ()))

    @property
    def openings(self) -> tuple[str, ...]:
        """See `ReasoningFormat`."""
        return tuple(self.pairs)

    def opened_by(self, tail: str) -> tuple[int, str]:
        """See `ReasoningFormat`."""
        for opening, closings in self.pairs.items():
            closed = "|".join(map(re.escape, closings))
            found = re.search(rf"{re.escape(opening + self.label)}\s*((?:{closed})\s*)?\Z", tail)
            if found is not None:
                return len(found[0]), "" if found[1] else opening
            if tail.rstrip().endswith(tuple(closings)):
                return 0, ""  # some say so that there is nothing to reason
        return 0, next(iter(self.pairs)) if self.begins_inside else ""

    def read(self, source: Source, opened: str) -> Reading[None]:
        """See `ReasoningFormat`."""
        is_framed = False
        if not opened:
            source.mark()
            yield from source.skip_space()
            taken = yield from source.take(*(f"{one}{self.label}" for one in self.pairs))
            opened = taken.removesuffix(self.label)
            is_framed = not opened and (yield from self._begins_frame(source))
            if not opened and not is_framed:
                source.as_text()
                return
            source.unmark()
        source.is_aside = True
        if opened:
            yield from self._read_thought(source, opened)
            is_framed = yield from self._begins_frame(source)
        if is_framed and self.framed is not None:
            yield from source.skip_space()
            source.is_aside = False
            # What is called with a text that has a grammar may have the marker in it.
            yield from source.told_until("text", *([] if source.raws else self.framed[1:]))
        source.is_aside = False

    def _read_thought(self, source: Source, opened: str) -> Reading[None]:
        if self.begins_inside:
            yield from source.skip_space()
            yield from source.take(opened)
        yield from source.told_until("reasoning", *self.pairs[opened])
        yield from source.skip_space()

    def _begins_frame(self, source: Source) -> Reading[bool]:
        return self.framed is not None and bool((yield from source.take(self.framed[0])))

    def preamble(self, opened: str, spell: Spell, most_tokens: int | None = None) -> str:
        """See `ReasoningFormat`."""
        rules: list[str] = []
        thoughts: list[str] = []
        for opening in [opened] if opened else self.pairs:
            closings = self.pairs[opening]
            ends = [_up_to(one, spell(one), closings, rules, most_tokens) for one in closings]
            start = "" if opened else f"{spell(opening)} {literal(self.label)}"
            thoughts.append(f"{start} ({' | '.join(ends)})")
        frame = "" if self.framed is None else f"{spell(self.framed[0])} {_SPACE}"
        whole = f"({' | '.join(thoughts)}) {_SPACE} {frame and f'({frame})?'}"
        if not opened:
            whole = f"({whole} | {frame})?" if frame else f"({whole})?"
        return "\n".join([f"preamble: {whole}", *rules])


def _up_to(
    marker: str, spelled: str, closings: Sequence[str], rules: list[str], most_tokens: int | None
) -> str:
    """Any text, or one of so many tokens, and a marker that closes it: what stands for that, with
    the `rules` that it needs.

    A marker that is a token may be spelled as well: what is read then is the answer.
    """
    name = f"up_to_{len(rules)}"
    if most_tokens is not None:
        terminal = f"THOUGHT_{len(rules)}"
        rules += [
            f"{name}[max_tokens={most_tokens}]: {terminal}",
            f"{terminal}: {lacking(*closings)}",
        ]
        return f"{name} {spelled}"
    rules.append(f"{name}[suffix={literal(marker)}]: {ANY_TEXT}")
    if spelled == literal(marker):
        return name
    rules.append(f"THOUGHT_{len(rules)}: {lacking(*closings)}")
    return f"{name} | THOUGHT_{len(rules) - 1} {spelled}"
