"""How a model is asked to reason and writes what it reasons, as its template shows; and where that
lies in the tokens of a conversation that goes on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, TemplateError, meta
from msgspec import structs
from transformers import PreTrainedTokenizerBase

from app.formats.reasoning.formats import REASONING_FORMATS, ReasoningName, ReasoningSetting
from app.formats.reasoning.parser import ReasoningFormat, ReasoningParser
from app.prompt.tokenizer import control_tokens
from app.request.template_options import SWITCHES
from app.wire.common import Effort, EffortWish
from engine.api import Grammar
from engine.grammar.lark import literal, token

_SPOKEN: Final[dict[ReasoningName, Sequence[str]]] = {
    "harmony": ("<|channel|>",),
    "mistral": ("[THINK]",),
    "granite": ("<response></response>", "Here is my thought process:"),
    "cohere": ("<|START_THINKING|>",),
    "gemma": ("<|channel>thought",),
    "seed": ("<seed:think>",),
    "kimi": ("◁think▷",),
    "think": ("<think>", "</think>"),
}
"""What a template spells whose model writes in a format."""
_EFFORT: Final = "reasoning_effort"
_GENERATION_TAG: Final = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
_TAIL_TOKENS: Final = 32
"""Of a prompt: more than any template ends it with."""
_NEAREST: Final[dict[Effort, Effort]] = {
    "none": "low",
    "minimal": "low",
    "xhigh": "high",
    "max": "high",
}


@dataclass(frozen=True)
class Opened:
    """How a prompt begins its answer: the last `num_tokens` are markers of reasoning.

    `by` is the one that the answer begins inside of; empty where it begins outside.
    """

    num_tokens: int = 0
    by: str = ""


class ReasoningStyle:
    """What one model's template and tokenizer show of reasoning.

    `form` is how it is written, `None` where nothing is known of any.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, setting: ReasoningSetting) -> None:
        self._tokenizer = tokenizer
        self._template = str(tokenizer.chat_template or "")
        self.form: ReasoningFormat | None = None
        if setting == "auto":
            self.form = self._found()
        elif setting != "none":
            self.form = REASONING_FORMATS[setting]
        known = _variables(self._template)
        self._switches = [name for name in SWITCHES if name in known]
        self._knows_effort = _EFFORT in known

    def unheeded(self, wish: EffortWish) -> list[str]:
        """The field that asks for an effort which the template cannot be told of."""
        if wish is None or self._knows_effort or self._switches:
            return []
        field, effort = wish
        return [] if effort == "none" and self.form is None else [field]

    def variables(self, effort: Effort | None) -> dict[str, Any]:
        """What the template is told of an effort."""
        if effort is None:
            return {}
        told: dict[str, Any] = dict.fromkeys(self._switches, effort not in ("none", "minimal"))
        if self._knows_effort:
            is_named = re.search(rf"['\"]{effort}['\"]", self._template)
            told[_EFFORT] = effort if is_named else _NEAREST.get(effort, effort)
        return told

    def opened(self, prompt: Sequence[int]) -> Opened | None:
        """How a prompt begins its answer; `None` where no reasoning is looked for in it."""
        if self.form is None:
            return None
        length, by = self.form.opened_by(self._text(prompt[-_TAIL_TOKENS:]))
        count = 0
        while len(self._text(prompt[len(prompt) - count :])) < length:
            count += 1
        return Opened(count, by)

    def sifter(self, opened: Opened | None, raws: Collection[str] = ()) -> ReasoningParser | None:
        """What takes reasoning out of an answer, which may end with a call of one of `raws`; `None`
        where there is none to be looked for.
        """
        if self.form is None or opened is None:
            return None
        return ReasoningParser(self.form, opened.by, raws)

    def before(
        self, grammar: Grammar, opened: Opened | None, most_tokens: int | None = None
    ) -> Grammar:
        """A grammar of what comes behind the reasoning, whatever that is, or of `most_tokens`."""
        if self.form is None or opened is None:
            return grammar
        known = control_tokens(self._tokenizer, self.form.markers)

        def spell(marker: str) -> str:
            return token(known[marker]) if marker in known else literal(marker)

        preamble = self.form.preamble(opened.by, spell, most_tokens)
        tokens = tuple(dict.fromkeys((*grammar.tokens, *known.values())))
        return structs.replace(grammar, preamble=preamble, tokens=tokens)

    def spelled_openings(self, opened: Opened | None) -> list[str]:
        """What begins reasoning where an answer begins, and text may spell as well."""
        if self.form is None or opened is None or opened.by:
            return []
        known = control_tokens(self._tokenizer, self.form.openings)
        return [one for one in self.form.openings if one not in known]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _found(self) -> ReasoningFormat | None:
        for name, spoken in _SPOKEN.items():
            if any(one in self._template for one in spoken):
                return REASONING_FORMATS[name]
        return None


def _variables(template: str) -> set[str]:
    """What a template can be told besides messages and tools."""
    try:
        bare = _GENERATION_TAG.sub("", template)
        return meta.find_undeclared_variables(
            Environment(extensions=["jinja2.ext.loopcontrols"]).parse(bare)
        )
    except TemplateError:
        return set()


Aside = tuple[int, int]
"""Where reasoning begins and ends, with the markers around it."""


def asides_of(prompt_tokens: int, opened: Opened | None, output: Sequence[Aside]) -> list[Aside]:
    """Where a prompt and its answer have what was reasoned in the answer.

    `opened` is how the prompt begins the answer, and `output` counts from there.
    """
    moved = [(prompt_tokens + begin, prompt_tokens + end) for begin, end in output]
    if opened is None or not opened.num_tokens:
        return moved
    begin = prompt_tokens - opened.num_tokens
    if moved and moved[0][0] == prompt_tokens:
        return [(begin, moved[0][1]), *moved[1:]]
    return [(begin, prompt_tokens), *moved]


def without_asides(
    ids: Sequence[int], asides: Sequence[Aside], starts: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The tokens without those of `asides`, and where `starts` lie among them."""
    kept: list[int] = []
    at = 0
    for begin, end in asides:
        kept += ids[at:begin]
        at = end
    kept += ids[at:]
    ends = [end for _, end in asides]
    gone = [0]
    for begin, end in asides:
        gone.append(gone[-1] + end - begin)
    return kept, [start - gone[bisect_right(ends, start)] for start in starts]
