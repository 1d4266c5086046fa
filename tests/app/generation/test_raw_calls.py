"""Custom tools with a grammar: whatever a model writes, in any format, the text follows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import pre_tokenizers

from app.formats.reasoning.formats import REASONING_FORMATS
from app.formats.reasoning.parser import ReasoningParser
from app.formats.tools.format import Shape, Unwritable
from app.formats.tools.formats import FORMATS
from app.formats.tools.parser import ToolParser
from app.generation.answer_grammar import call_grammar
from app.generation.detokenizer import Detokenizer
from app.prompt.tokenizer import control_tokens
from app.wire.functions import TEXT_PARAMETERS
from engine.api import Grammar
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.lark import whole
from engine.grammar.source import LIMITS, _bytes, problem_of, serialized
from tests.app.generation.walks import new_tokenizer, vocabulary_of, walk
from tests.effort import scaled

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"height": {"type": "integer"}},
    "required": ["height"],
    "additionalProperties": False,
}
LINES = "start: LINE (NL LINE)*\nLINE: /[^\\n]*/\nNL: /\\n/"
"""Any text at all, in terminals that take as much as they can."""
SUM = (
    'start: term (SIGN term)*\nterm: NUMBER | "(" start ")"\nSIGN: "+" | "-"\n'
    "NUMBER: /[0-9]+/\n%ignore / +/"
)
PATCH = (
    'start: "*** Begin Patch\\n" hunk+ "*** End Patch" LF?\n'
    'hunk: "*** Add File: " NAME LF ("+" /.{0,12}/ LF)+\n'
    "NAME: /[a-z]+/\nLF: /\\n/"
)
QUOTED = r'("[^"\\]*"|\\n|\{\n)+'
STYLES = [
    (name, control) for name in FORMATS for control in (False, True) if control or name != "harmony"
]
Part = tuple[str, str]


def lark(source: str) -> Grammar:
    return Grammar(kind="lark", source=source)


def derives(grammar: Grammar, text: str) -> bool:
    """Whether a text is one of a grammar's, by that grammar alone."""
    matcher = LLMatcher(_bytes(), serialized(grammar), log_level=0, limits=LIMITS)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


class Raw:
    """A format in which `write` takes a text that has a grammar, and `build` takes JSON."""

    def __init__(self, name: Any, control: bool, grammar: Grammar, folder: Path) -> None:
        self.form = FORMATS[name]
        self.markers = tuple(one for one in self.form.markers if one != "functools")
        self.grammar = grammar
        self.tokenizer = new_tokenizer(self.markers) if control else new_tokenizer((), self.markers)
        self.tokens = control_tokens(self.tokenizer, self.markers)
        self.vocabulary = vocabulary_of(self.tokenizer, folder)
        self.sifts = name == "harmony" and control

    def held(self, *, alone: bool = False, **options: Any) -> Grammar:
        shapes = [Shape("write", TEXT_PARAMETERS, raw=whole(self.grammar))]
        shapes += [] if alone else [Shape.of("build", SCHEMA, True)]
        asked: dict[str, Any] = {"parallel": True, "required": True, **options}
        grammar = call_grammar(self.form, self.tokens, shapes, **asked)
        assert problem_of(grammar) is None, (problem_of(grammar), grammar.source)
        return grammar

    @property
    def frame(self) -> list[int]:
        """The tokens before the text."""
        shapes = [Shape("write", TEXT_PARAMETERS, raw='"Z"')]
        only = call_grammar(self.form, self.tokens, shapes, parallel=False, required=True)
        ids = self.walk(only, 0)
        return ids[: ids.index(self.spelled("Z")[0])]

    @property
    def end(self) -> list[int]:
        """The tokens behind it, but for the answer's end."""
        return [self.tokens["<|call|>"]] if "<|call|>" in self.tokens else []

    def spelled(self, text: str) -> list[int]:
        """A text with no control token in it, byte by byte."""
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found = [mapped for mapped, _ in byte_level.pre_tokenize_str(text)]
        return list(self.tokenizer.convert_tokens_to_ids(list("".join(found))))

    def walk(self, grammar: Grammar, seed: int, start: str = "") -> list[int]:
        ids = self.tokenizer.encode(start)
        return walk(grammar, self.tokenizer, self.vocabulary, seed, ids)

    def read(
        self,
        ids: list[int],
        *,
        cut: bool = False,
        required: bool = False,
        texts: Sequence[str] = ("write",),
        raws: Sequence[str] = ("write",),
    ) -> list[Part]:
        sifter = ReasoningParser(REASONING_FORMATS["harmony"], "", raws)
        markers = (*self.form.markers, *sifter.markers) if self.sifts else self.form.markers
        detokenizer = Detokenizer(
            self.tokenizer, shown=markers, sifter=sifter if self.sifts else None
        )
        functions = {"build": SCHEMA, "write": TEXT_PARAMETERS}
        reader = ToolParser(self.form, functions, required=required, texts=texts, raws=raws)
        parts = [part for one in ids for part in reader.push(detokenizer.push([one]))]
        parts += [*reader.push(detokenizer.finish(cut=cut)), *reader.finish(cut=cut)]
        merged: list[Part] = []
        for part in parts:
            if merged and merged[-1][0] == part.kind not in ("call", "custom"):
                merged[-1] = (part.kind, merged[-1][1] + part.text)
            else:
                merged.append((part.kind, part.text))
        return merged


@pytest.fixture(params=STYLES, ids=lambda style: f"{style[0]}-{'tokens' if style[1] else 'text'}")
def style(request: pytest.FixtureRequest) -> tuple[str, bool]:
    found: tuple[str, bool] = request.param
    return found


GRAMMARS = [lark(LINES), lark(SUM), lark(PATCH), Grammar(kind="regex", source=QUOTED)]


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    """The calls, each by its name and what it is called with."""
    calls: list[tuple[str, str]] = []
    for kind, text in parts:
        if kind in ("call", "custom"):
            calls.append((text, ""))
        else:
            calls[-1] = (calls[-1][0], text)
    return calls


@pytest.mark.scaled
def test_what_is_called_with_is_always_of_the_grammar(
    style: tuple[str, bool], tmp_path: Path
) -> None:
    raw = Raw(*style, lark(SUM), tmp_path)
    for raw.grammar in GRAMMARS:
        for alone in (True, False):
            held = raw.held(alone=alone)
            for seed in range(scaled(1, most=100)):
                parts = raw.read(raw.walk(held, seed))
                if parts[0][0] == "call":
                    assert not alone
                    assert {kind for kind, _ in parts} == {"call", "arguments"}
                    continue
                assert parts[0] == ("custom", "write"), parts
                assert [kind for kind, _ in parts[1:]] in ([], ["input"]), parts
                text = parts[1][1] if parts[1:] else ""
                assert derives(raw.grammar, text), text


@pytest.mark.scaled
def test_a_free_text_is_read_as_it_was_written(style: tuple[str, bool], tmp_path: Path) -> None:
    raw = Raw(*style, lark(SUM), tmp_path)
    shapes = [Shape.of("write", TEXT_PARAMETERS, True), Shape.of("build", SCHEMA, True)]
    held = call_grammar(raw.form, raw.tokens, shapes, parallel=True, required=True)
    for seed in range(scaled(2, most=100)):
        ids = raw.walk(held, seed)
        meant = [
            (name, json.loads(text)["input"] if name == "write" else text)
            for name, text in calls_of(raw.read(ids, texts=(), raws=()))
        ]
        assert calls_of(raw.read(ids, raws=())) == meant


def test_whatever_marks_an_end_may_stand_in_the_text(
    style: tuple[str, bool], tmp_path: Path
) -> None:
    raw = Raw(*style, lark(LINES), tmp_path)
    pieces = [
        *raw.form.markers,
        "<|end|>",
        "<|return|>",
        "</response>",
        '"}',
        "]",
        "\n",
        "</parameter>",
    ]
    held = raw.held(alone=True)
    for text in ["".join(pieces), *(f"{one}{one}" for one in pieces), *pieces]:
        ids = [*raw.frame, *raw.spelled(text), *raw.end]
        matcher = CompiledGrammar(held, raw.vocabulary).matcher()
        assert matcher.consume_tokens(ids)
        assert matcher.is_accepting()
        assert raw.read(ids) == [("custom", "write"), ("input", text)]


def test_a_call_that_is_cut_has_what_there_is_of_its_text(
    style: tuple[str, bool], tmp_path: Path
) -> None:
    raw = Raw(*style, lark(LINES), tmp_path)
    whole_ids = [*raw.frame, *raw.spelled("one\ntwo")]
    told = [
        raw.read(whole_ids[:count], cut=True, required=True)
        for count in range(len(whole_ids) + 1)
        if "\ufffd" not in raw.tokenizer.decode(whole_ids[:count])
    ]
    assert told[-1] == [("custom", "write"), ("input", "one\ntwo")]
    for parts in told:
        assert parts == told[-1][: len(parts)] or (
            parts[0] == told[-1][0] and told[-1][1][1].startswith(parts[1][1])
        ), parts


def test_a_text_before_and_a_format_beside_go_with_it(
    style: tuple[str, bool], tmp_path: Path
) -> None:
    raw = Raw(*style, lark(SUM), tmp_path)
    held = raw.held(required=False)
    before = "" if style[0] in ("llama", "pythonic", "harmony") else "Well."
    start = [*raw.spelled(before), *raw.frame]
    parts = raw.read(walk(held, raw.tokenizer, raw.vocabulary, 0, start))
    *said, (_, text) = parts
    assert said == [*([("text", before)] if before else []), ("custom", "write")]
    assert derives(raw.grammar, text)
    beside = Grammar(kind="json_schema", source='{"type":"object"}')
    if style[0] == "llama":
        with pytest.raises(Unwritable, match="beside texts that have a grammar"):
            raw.held(required=False, beside=beside)
        return
    beside_ids = walk(
        raw.held(required=False, beside=beside), raw.tokenizer, raw.vocabulary, 0, raw.frame
    )
    [called, (_, text)] = raw.read(beside_ids)
    assert called == ("custom", "write")
    assert derives(raw.grammar, text)


def test_where_no_token_tells_the_end_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match="only a token"):
        Raw("harmony", False, lark(SUM), tmp_path).held()
