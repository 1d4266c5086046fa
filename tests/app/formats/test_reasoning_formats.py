"""What is reasoned is told from what is said in every format, however the text is cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats.reasoning.formats import REASONING_FORMATS
from app.formats.reasoning.marked import Marked
from app.formats.reasoning.parser import ReasoningParser
from app.generation.lines import Line, Piece
from app.wire.events import TokenLogprob
from engine.api import SamplingParams, TokenDelta, TokenLogprobs
from tests.app.conftest import byte_tokenizer

HARMONY = (
    "<|channel|>analysis<|message|>Hm, <b>?<|end|><|start|>assistant"
    "<|channel|>final<|message|>So: 7 < 8.\n<|return|>"
)
LOOKING = "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant"
CALLING = " to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
OTHERWISE = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
ANSWERS: list[tuple[Any, str, str, str, str]] = [
    ("think", "", "<think>\nHm, </thin <b>?\n</think>\n\nSo: 7.\n", "Hm, </thin <b>?", "So: 7.\n"),
    ("think", "", "\n<think></think>So.", "", "So."),
    ("think", "", "<think>\n\n</think>\n\n", "", ""),
    ("think", "<think>", "Hm?\n</think>\n\nSo </think>.", "Hm?", "So </think>."),
    ("think", "", "  So <think>this</think>.", "", "  So <think>this</think>."),
    ("think", "", "<thin", "", "<thin"),
    ("think", "", " \n", "", " \n"),
    ("think", "", "<think>Hm, and\n</thi", "Hm, and\n</thi", ""),
    ("think", "<think>", "Hm, and \n", "Hm, and", ""),
    ("deepseek", "<think>", "<think>\nHm?</think>So.", "Hm?", "So."),
    ("deepseek", "<think>", "Hm?</think>So.", "Hm?", "So."),
    ("deepseek", "", "So.", "", "So."),
    ("mistral", "", "[THINK]Hm?[/THINK]So.", "Hm?", "So."),
    ("granite", "", "<think>Hm?</think>\n<response>So.</response>", "Hm?", "So."),
    ("granite", "", "Here's my thought process: Hm?\n\nHere is my response: So.", "Hm?", "So."),
    ("granite", "", "Here is so.", "", "Here is so."),
    ("cohere", "", "<|START_THINKING|>Hm?<|END_THINKING|><|START_RESPONSE|>So.<|END_RESPONSE|>",
     "Hm?", "So."),
    ("cohere", "", "<|START_RESPONSE|>So.<|END_RESPONSE|>", "", "So."),
    ("cohere", "<|START_THINKING|>", "Hm?<|END_THINKING|>So.", "Hm?", "So."),
    ("gemma", "", "<|channel>thought\nHm?\n<channel|>So.", "Hm?", "So."),
    ("gemma", "<|channel>", "Hm?\n<channel|>So.", "Hm?", "So."),
    ("gemma", "", "<|channel>other\nSo.", "", "<|channel>other\nSo."),
    ("seed", "", "<seed:think>\nHm?\n</seed:think>\nSo.", "Hm?", "So."),
    ("kimi", "", "◁think▷Hm?◁/think▷So.", "Hm?", "So."),
    ("harmony", "", HARMONY, "Hm, <b>?", "So: 7 < 8.\n"),
    ("harmony", "", "<|channel|>final<|message|>So.<|return|>", "", "So."),
    ("harmony", "", "<|channel|>commentary<|message|>First.<|end|><|start|>assistant"
     + LOOKING + CALLING,
     "Look.", "First.<|channel|>commentary to=functions.now<|message|>{}<|call|>"),
    ("harmony", "", LOOKING + OTHERWISE,
     "Look.", "<|channel|>commentary to=functions.now<|message|>{}<|call|>"),
    ("harmony", "", LOOKING + "<|channel|>commen", "Look.", ""),
    ("harmony", "", "<|channel|>analysis<|message|>Hm, and", "Hm, and", ""),
    ("harmony", "", "So: no channel.", "", "So: no channel."),
]  # fmt: skip


def sifted(name: Any, opened: str, pieces: list[str]) -> tuple[str, str]:
    sifter = ReasoningParser(REASONING_FORMATS[name], opened)
    said = "".join(sifter.push(piece) for piece in pieces)
    said += sifter.finish() + sifter.finish()
    return sifter.take(), said


@pytest.mark.parametrize(("name", "opened", "text", "reasoning", "said"), ANSWERS)
def test_reasoning_is_taken_out_of_what_is_said(
    name: Any, opened: str, text: str, reasoning: str, said: str
) -> None:
    assert sifted(name, opened, [text]) == (reasoning, said)
    assert sifted(name, opened, list(text)) == (reasoning, said)
    for cut in range(1, len(text)):
        assert sifted(name, opened, [text[:cut], text[cut:]]) == (reasoning, said)


@given(
    st.sampled_from([name for name in REASONING_FORMATS if name != "harmony"]),
    st.booleans(),
    st.lists(
        st.sampled_from(
            [
                *("<think>", "</think>", "[THINK]", "[/THINK]", "<", "\n", " ", "a", "é"),
                *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_THINKING|>", "<|channel>"),
                *("thought\n", "<channel|>", "<|END_THINKING|>", "<seed:think>", "◁think▷"),
                *("Here is my ", "thought process:", "response:", "<response>", "</response>"),
            ]
        ),
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_made_of_a_text_does_not_depend_on_how_it_was_cut(
    name: Any, is_open: bool, words: list[str], rng: Any
) -> None:
    form = REASONING_FORMATS[name]
    assert isinstance(form, Marked)
    opened = next(iter(form.pairs)) if is_open else ""
    text = "".join(words)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(4))
    pieces = [text[one:other] for one, other in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert sifted(name, opened, pieces) == sifted(name, opened, [text])


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", (8, "<think>")),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", (19, "")),
        ("<think>\n\n</think>\n\nassistant\n", (0, "")),
        ("<|im_start|>assistant\n", (0, "")),
        ("<|assistant|></think>", (0, "")),
    ],
)
def test_a_prompt_shows_whether_its_answer_begins_inside(
    tail: str, expected: tuple[int, str]
) -> None:
    assert REASONING_FORMATS["think"].opened_by(tail) == expected
    is_shown = bool(expected[0]) or tail.endswith("</think>")
    always = expected if is_shown else (0, "<think>")
    assert REASONING_FORMATS["deepseek"].opened_by(tail) == always


def line_of(text: str, step: int = 1, **options: Any) -> tuple[Line, list[Piece]]:
    """A line whose tokens, one a byte, come so many at once, with log-probabilities."""
    tokenizer = byte_tokenizer()
    form = options.pop("form", "think")
    line = Line(
        0,
        SamplingParams(max_tokens=999, logprobs=0),
        tokenizer,
        options.pop("stop", ()),
        sifter=ReasoningParser(REASONING_FORMATS[form], options.pop("opened", "")),
        **options,
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces: list[Piece] = []
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        scores = [TokenLogprobs(-0.5, []) for _ in some]
        pieces += line.take(TokenDelta(request_id="r", token_ids=some, logprobs=scores))
        if line.end is not None:
            return line, pieces
    return line, pieces + line.take(TokenDelta(request_id="r", finish_reason="stop"))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(("name", "opened", "text", "reasoning", "said"), ANSWERS)
def test_a_line_reads_tokens_as_the_text_they_spell(
    name: Any, opened: str, text: str, reasoning: str, said: str, step: int
) -> None:
    line, pieces = line_of(text, step, form=name, opened=opened)
    assert (line.reasoning, line.text) == (reasoning, said)
    assert "".join(one.text for one in pieces if one.kind == "reasoning") == reasoning
    assert "".join(one.text for one in pieces if one.kind == "text") == said
    assert [one.end for one in pieces].count("stop") == 1
    assert pieces[-1].end == "stop"


def test_log_probabilities_are_those_of_what_is_said() -> None:
    _, pieces = line_of("<think>\né?</think>\n\nSø.")
    told = [one for piece in pieces for one in piece.logprobs]
    spelled = [bytes(msgspec.json.decode(one, type=TokenLogprob).bytes) for one in told]
    assert b"".join(spelled) == "Sø.".encode()


def test_reasoning_tokens_are_counted_with_the_markers_around() -> None:
    line, _ = line_of("<think>abc</think>\n\nSo.")
    assert line.num_reasoning_tokens == len("<think>abc</think>\n\n")
    assert line.asides == [(0, 20)]
    assert line_of("So <think>")[0].num_reasoning_tokens == 0
    assert line_of("<think></think>So")[0].num_reasoning_tokens == 0
    line, _ = line_of(HARMONY, form="harmony")
    text = line_text(line)
    assert text == "<|channel|>final<|message|>So: 7 < 8.\n"


def line_text(line: Line) -> str:
    """What its tokens spell, without those that are aside."""
    aside = {one for begin, end in line.asides for one in range(begin, end)}
    kept = [token for at, token in enumerate(line.output_ids) if at not in aside]
    return str(byte_tokenizer().decode(kept))


@pytest.mark.parametrize("stop", ["Hm", "\n\n", "think", "<", "So"])
def test_stop_strings_are_looked_for_in_what_is_said_alone(stop: str) -> None:
    line, _ = line_of("<think>Hm?\n\nSo</think>\n\nWell. So: \n\n<Hm think>", stop=[stop])
    assert line.reasoning == "Hm?\n\nSo"
    assert line.end == "stop"
    whole = "Well. So: \n\n<Hm think>"
    assert line.text == whole[: whole.index(stop)]


def test_an_earlier_stream_is_gone_on_with_at_every_token() -> None:
    text = "<think>a é</think>\n\nSo <b>."
    ids = byte_tokenizer()(text, add_special_tokens=False)["input_ids"]
    whole, pieces = line_of(text)
    for cut in range(len(ids)):
        again = Line(
            0, SamplingParams(max_tokens=999), byte_tokenizer(), (), ids[:cut],
            sifter=ReasoningParser(REASONING_FORMATS["think"], ""),
        )  # fmt: skip
        seen = {kind: getattr(again, kind) for kind in ("text", "reasoning")}
        rest = again.take(TokenDelta(request_id="r", token_ids=ids[cut:], finish_reason="stop"))
        assert (again.text, again.reasoning) == (whole.text, whole.reasoning)
        assert again.asides == whole.asides
        for kind, before in seen.items():
            told = before + "".join(one.text for one in rest if one.kind == kind)
            assert told == "".join(one.text for one in pieces if one.kind == kind)


@pytest.mark.parametrize(
    ("name", "before", "kept"),
    [
        ("granite", "<think>So.</think><response>", ""),
        ("cohere", "<|START_THINKING|>So.<|END_THINKING|><|START_RESPONSE|>", ""),
        (
            "harmony",
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant",
            "<|channel|>commentary to=functions.write<|message|>",
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>",
            "Hm.<|channel|>commentary to=functions.write<|message|>",
        ),
        (
            "harmony",
            "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>",
            "Hm. to=functions.write<|channel|>commentary<|message|>",
        ),
    ],
)
def test_what_ends_an_answer_elsewhere_may_stand_in_a_text_that_ends_it(
    name: Any, before: str, kept: str
) -> None:
    text = f"{kept}a </response><|END_RESPONSE|><|end|><|call|><|return|> b<|end|>"
    sifter = ReasoningParser(REASONING_FORMATS[name], "", ["write"])
    answer = "".join(map(sifter.push, before + text)) + sifter.finish()
    assert (answer, sifter.take()) == (text, "So.")
