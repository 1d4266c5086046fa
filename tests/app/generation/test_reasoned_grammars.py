"""What models may say that reason before an answer that is held: it is read as it was meant."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from app.formats.tools.format import Shape
from app.formats.tools.formats import FORMATS
from app.formats.tools.parser import ToolParser
from app.generation.answer_grammar import any_answer, call_grammar
from app.generation.lines import Line
from app.prompt.reasoning_style import Opened, ReasoningStyle
from app.prompt.tokenizer import control_tokens
from app.wire.functions import TEXT_PARAMETERS
from engine.api import Grammar, SamplingParams, TokenDelta
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.lark import whole
from engine.grammar.source import problem_of
from engine.grammar.vocabulary import Vocabulary
from tests.app.generation.walks import new_tokenizer, vocabulary_of, walk
from tests.effort import scaled

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["wall", "door"]}, "high": {"type": "boolean"}},
    "required": ["kind", "high"],
    "additionalProperties": False,
}
OBJECT = Grammar(kind="json_schema", source=json.dumps(SCHEMA))
LONG = "<think>No </thin, and [1]: é\n"
HARMONY = [*FORMATS["harmony"].markers, "<|start|>", "<|end|>", "<|return|>"]
COHERE = [f"<|{word}|>" for word in
          ("START_THINKING", "END_THINKING", "START_RESPONSE", "END_RESPONSE")]  # fmt: skip
STYLES: dict[str, tuple[Any, list[str], list[str], str, str]] = {
    "think": ("think", [], ["<think>", "</think>"], LONG + "</think>\n\n", ""),
    "think as tokens": ("think", ["<think>", "</think>"], [], LONG + "</think>\n\n", ""),
    "think as added tokens": ("think", [], [], LONG + "</think>\n\n", ""),
    "think opened": ("think", [], [], "So\n</think>\n\n", "<think>"),
    "mistral": ("mistral", ["[THINK]", "[/THINK]"], [], "[THINK]So[/THINK]", ""),
    "granite": ("granite", [], [], "Here is my thought process: so.\n\nHere is my response: ", ""),
    "granite framed": ("granite", [], [], "<think>So.</think><response>", ""),
    "cohere": ("cohere", COHERE, [],
               "<|START_THINKING|>So.<|END_THINKING|><|START_RESPONSE|>", ""),
    "gemma": ("gemma", ["<|channel>", "<channel|>"], [], "<|channel>thought\nSo.\n<channel|>", ""),
    "harmony": ("harmony", HARMONY, [],
                "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>",
                ""),
}  # fmt: skip


class Reasoning:
    """A style over a tokenizer, and answers that are read in it."""

    def __init__(self, name: str, folder: Path) -> None:
        form, controls, spelled, self.thought, opened = STYLES[name]
        self.tokenizer: PreTrainedTokenizerFast = new_tokenizer(controls, spelled)
        if "added" in name:  # as Qwen3 has them, which calls them no special ones
            self.tokenizer.add_tokens([AddedToken(one) for one in ("<think>", "</think>")])
        self.vocabulary: Vocabulary = vocabulary_of(self.tokenizer, folder)
        self.style = ReasoningStyle(self.tokenizer, form)
        self.opened = Opened(0, opened)

    def before(self, grammar: Grammar) -> Grammar:
        held = self.style.before(grammar, self.opened)
        assert problem_of(held) is None, held.preamble
        return held

    def walk(self, grammar: Grammar, seed: int, start: str = "") -> list[int]:
        ids = self.tokenizer.encode(start)
        return walk(grammar, self.tokenizer, self.vocabulary, seed, ids)

    def line(
        self, ids: list[int], reader: ToolParser | None = None, raws: Sequence[str] = ()
    ) -> Line:
        sifter = self.style.sifter(self.opened, raws)
        assert sifter is not None
        sampling = SamplingParams(max_tokens=9999)
        line = Line(0, sampling, self.tokenizer, (), reader=reader, sifter=sifter)
        line.take(TokenDelta(request_id="r", token_ids=ids, finish_reason="stop"))
        return line


@pytest.fixture(params=STYLES)
def reasoning(request: pytest.FixtureRequest, tmp_path: Path) -> Reasoning:
    return Reasoning(request.param, tmp_path)


def test_whatever_is_reasoned_the_answer_is_held(reasoning: Reasoning) -> None:
    grammar = reasoning.before(OBJECT)
    for seed in range(scaled(3, most=200)):
        line = reasoning.line(reasoning.walk(grammar, seed, reasoning.thought))
        value = json.loads(line.text)
        assert value["kind"] in ("wall", "door")
        assert value.keys() == {"kind", "high"}
        assert line.reasoning


def test_a_model_that_does_not_reason_is_held_at_once(reasoning: Reasoning) -> None:
    if reasoning.opened.by:
        return
    ids = reasoning.tokenizer.encode('{"kind": "wall", "high": true}')
    matcher = CompiledGrammar(reasoning.before(OBJECT), reasoning.vocabulary).matcher()
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


def test_calls_are_held_behind_it(reasoning: Reasoning) -> None:
    form = FORMATS["harmony" if reasoning.style.form is not None and
                   "<|channel|>" in reasoning.style.form.markers else "hermes"]  # fmt: skip
    tokens = control_tokens(reasoning.tokenizer, form.markers)
    shapes = [Shape.of("build", SCHEMA, True)]
    for required in (True, False):
        calls = call_grammar(form, tokens, shapes, parallel=False, required=required)
        grammar = reasoning.before(calls)
        opening = form.write([("build", {})]).partition("{")[0] if not required else ""
        thought = reasoning.thought.removesuffix("<|channel|>final<|message|>")
        for seed in range(scaled(2, most=100)):
            ids = reasoning.walk(grammar, seed, thought + opening)
            line = reasoning.line(ids, ToolParser(form, {"build": SCHEMA}))
            [call] = line.calls
            assert json.loads(call.text).keys() == {"kind", "high"}
            assert line.reasoning


def test_a_text_that_has_a_grammar_is_held_behind_it(reasoning: Reasoning) -> None:
    is_harmony = "<|channel|>" in reasoning.tokenizer.get_vocab()
    form = FORMATS["harmony" if is_harmony else "hermes"]
    tokens = control_tokens(reasoning.tokenizer, form.markers)
    allowed = Grammar(kind="regex", source=r"([ab]<\|end\|>|[ab]</response>|b<\|call\|>){1,3}")
    shapes = [Shape("write", TEXT_PARAMETERS, raw=whole(allowed))]
    grammar = reasoning.before(call_grammar(form, tokens, shapes, parallel=False, required=True))
    for seed in range(scaled(3, most=100)):
        ids = reasoning.walk(grammar, seed, reasoning.thought)
        reader = ToolParser(form, {"write": TEXT_PARAMETERS}, texts=["write"], raws=["write"])
        line = reasoning.line(ids, reader, ["write"])
        [call] = line.calls
        assert (call.kind, line.text) == ("custom", "")
        assert re.fullmatch(allowed.source, call.text)
        assert line.reasoning


@pytest.mark.parametrize("calls", [False, True])
def test_no_more_is_reasoned_than_may_be(reasoning: Reasoning, calls: bool) -> None:
    unsaid = reasoning.style.spelled_openings(reasoning.opened)
    grammar = any_answer(unsaid)
    if calls:
        form = FORMATS["harmony" if "<|channel|>" in reasoning.tokenizer.get_vocab() else "hermes"]
        tokens = control_tokens(reasoning.tokenizer, form.markers)
        shapes = [Shape.of("build", SCHEMA, True)]
        grammar = call_grammar(form, tokens, shapes, parallel=False, required=False, unsaid=unsaid)
    held = reasoning.style.before(grammar, reasoning.opened, 5)
    assert problem_of(held) is None, held.preamble
    begun, so, rest = re.split("(So|so|No )", reasoning.thought, maxsplit=1)
    matcher = CompiledGrammar(held, reasoning.vocabulary).matcher()
    for text in (begun, so):
        ids = reasoning.tokenizer.encode(text)
        assert matcher.try_consume_tokens(ids) == len(ids)
    told = len(ids)
    more = matcher.try_consume_tokens(reasoning.tokenizer.encode("y" * 20))
    assert more in (5 - told, 4 - told)  # a space behind what opens it counts
    ends = r"(?=</think>|\[/THINK|Here|<\|END|<channel|<\|end)"
    ending = reasoning.tokenizer.encode(re.split(ends, rest)[1])
    assert matcher.try_consume_tokens(ending) == len(ending)


def test_the_markers_of_a_format_are_the_tokens_that_may_be_drawn(tmp_path: Path) -> None:
    reasoning = Reasoning("think as added tokens", tmp_path)
    known = control_tokens(reasoning.tokenizer, ["<think>", "</think>"])
    assert reasoning.before(OBJECT).tokens == tuple(known.values())
    assert len(known) == 2
