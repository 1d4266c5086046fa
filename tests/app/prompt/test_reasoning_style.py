"""How a model reasons is found in its template; how much is what the template can be told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from app.formats.reasoning.formats import REASONING_FORMATS
from app.prompt.reasoning_style import Opened, ReasoningStyle, asides_of, without_asides
from engine.api import Grammar
from engine.grammar.source import problem_of
from tests.app.conftest import CHATML, byte_tokenizer
from tests.app.reasoning import HARMONY, OPENED, SWITCHED, reasoning_tokenizer


def style_of(template: str, setting: Any = "auto") -> ReasoningStyle:
    return ReasoningStyle(reasoning_tokenizer(template), setting)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (SWITCHED, "think"),
        (OPENED, "think"),
        ("{{ messages[0].content.split('</think>')[-1] }}", "think"),
        (HARMONY, "harmony"),
        ("{{ '[THINK]' + messages[0].content }}", "mistral"),
        ("{{ 'Write between <think></think> and <response></response>.' }}", "granite"),
        ("{{ '<think>' }}{{ '<response>' + messages[0].content + '</response>' }}", "think"),
        ("{{ '<|START_THINKING|><|END_THINKING|>' }}", "cohere"),
        ("{{ '<|channel>thought\\n<channel|>' }}", "gemma"),
        ("{% set begin = '<seed:think>' %}", "seed"),
        ("{{ '◁think▷' }}", "kimi"),
        ("{{ 'Begin with: Here is my thought process:' }}", "granite"),
    ],
)
def test_the_format_is_what_the_template_spells(template: str, name: Any) -> None:
    assert style_of(template).form is REASONING_FORMATS[name]
    assert style_of(template, "none").form is None


def test_a_model_whose_template_spells_none_does_not_reason() -> None:
    style = style_of(CHATML)
    assert style.form is None
    assert style.opened([1, 2, 3]) is None
    assert style.sifter(None) is None
    assert style.variables("high") == {}
    assert style_of(CHATML, "think").form is REASONING_FORMATS["think"]


@pytest.mark.parametrize(
    ("template", "effort", "told"),
    [
        (SWITCHED, "none", {"enable_thinking": False}),
        (SWITCHED, "minimal", {"enable_thinking": False}),
        (SWITCHED, "low", {"enable_thinking": True}),
        (SWITCHED, None, {}),
        ("{% if thinking %}{{ '<think>' }}{% endif %}", "high", {"thinking": True}),
        ("{{ 'thinking on' }}{{ messages[0].thinking }}", "high", {}),
        ("{% generation %}{{ enable_thinking }}{% endgeneration %}", "low",
         {"enable_thinking": True}),
        (HARMONY, "high", {"reasoning_effort": "high"}),
        (HARMONY, "none", {"reasoning_effort": "low"}),
        (HARMONY, "xhigh", {"reasoning_effort": "high"}),
        ("{% if reasoning_effort == 'none' %}{% endif %}", "none", {"reasoning_effort": "none"}),
        ("{% if broken", "high", {}),
    ],
)  # fmt: skip
def test_a_template_is_told_of_an_effort_in_its_own_words(
    template: str, effort: Any, told: dict[str, Any]
) -> None:
    assert style_of(template).variables(effort) == told


@pytest.mark.parametrize(
    ("tail", "opened"),
    [
        ("assistant\n", Opened(0, "")),
        ("assistant\n<think>\n", Opened(8, "<think>")),
        ("assistant\n<think>\n\n</think>\n\n", Opened(19, "")),
        ("<think>" + "a" * 40, Opened(0, "")),
    ],
)
def test_a_prompts_last_tokens_show_how_the_answer_begins(tail: str, opened: Opened) -> None:
    style = style_of(SWITCHED)
    ids = byte_tokenizer()(tail, add_special_tokens=False)["input_ids"]
    assert style.opened(ids) == opened


ANY = Grammar(kind="regex", source="[a-z]+")


@pytest.mark.parametrize("by", ["", "<think>"])
@pytest.mark.parametrize("template", [SWITCHED, "{{ 'Here is my thought process: <think>' }}"])
def test_what_is_reasoned_may_stand_before_a_grammar(template: str, by: str) -> None:
    grammar = style_of(template).before(ANY, Opened(0, by))
    assert problem_of(grammar) is None
    assert grammar.tokens == ()
    assert style_of(template).before(ANY, None) is ANY
    assert style_of(CHATML).before(ANY, Opened()) is ANY


def test_markers_that_are_control_tokens_are_named_as_such() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("[/THINK]", special=True)], special_tokens=True)
    tokenizer.chat_template = "[THINK]"
    end = tokenizer.convert_tokens_to_ids("[/THINK]")
    grammar = ReasoningStyle(tokenizer, "auto").before(ANY, Opened())
    assert grammar.tokens == (end,)
    assert f"<[{end}]>" in grammar.preamble
    assert '"[THINK]"' in grammar.preamble
    assert problem_of(grammar) is None
    harmony = style_of(HARMONY).before(ANY, Opened())
    assert len(harmony.tokens) == 7
    assert problem_of(harmony) is None


SPANS = st.lists(st.integers(0, 5), min_size=2, max_size=8)


@given(SPANS, st.lists(st.integers(0, 30), max_size=4))
def test_what_was_reasoned_is_taken_out_of_a_conversation(gaps: list[int], at: list[int]) -> None:
    edges = [sum(gaps[: index + 1]) for index in range(len(gaps) // 2 * 2)]
    asides = list(zip(edges[::2], edges[1::2], strict=True))
    ids = list(range(40))
    aside = {one for begin, end in asides for one in range(begin, end)}
    starts = sorted(one for one in at if one not in aside)
    kept, moved = without_asides(ids, asides, starts)
    assert kept == [one for one in ids if one not in aside]
    assert [kept[one] for one in moved] == starts


@pytest.mark.parametrize(
    ("opened", "output", "expected"),
    [
        (None, [], []),
        (Opened(), [(0, 5)], [(100, 105)]),
        (Opened(2, "<think>"), [(0, 5)], [(98, 105)]),
        (Opened(3), [], [(97, 100)]),
        (Opened(3), [(4, 6)], [(97, 100), (104, 106)]),
    ],
)
def test_markers_at_a_prompts_end_belong_to_what_is_reasoned(
    opened: Opened | None, output: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert asides_of(100, opened, output) == expected
