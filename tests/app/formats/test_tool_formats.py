"""Calls in every format: written, read again however their text is cut, and told from text."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.formats.tools.formats import FORMATS
from app.formats.tools.json_calls import Call
from app.formats.tools.parser import ToolParser
from tests.effort import scaled

FUNCTIONS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "now": {},
}
WHOLE_ANSWERS = ("llama", "pythonic")
"""Formats whose calls are the whole answer."""
Read = list[tuple[str, str]]


def read(name: Any, pieces: list[str] | str, cut: bool = False, **options: bool) -> Read:
    """The parts of a text that comes in `pieces`, neighbours of a kind as one."""
    reader = ToolParser(FORMATS[name], FUNCTIONS, **options)
    parts = [part for piece in pieces for part in reader.push(piece)]
    merged: list[list[str]] = []
    for part in [*parts, *reader.finish(cut=cut), *reader.finish(cut=cut)]:
        if merged and merged[-1][0] == part.kind != "call":
            merged[-1][1] += part.text
        else:
            merged.append([part.kind, part.text])
    return [(kind, text) for kind, text in merged]


def calls_of(parts: Read) -> list[Call]:
    names = [text for kind, text in parts if kind == "call"]
    arguments = [json.loads(text) for kind, text in parts if kind == "arguments"]
    return list(zip(names, arguments, strict=True))


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\"'\\{}[]<>|,:"),
    max_size=12,
)
AWKWARD = st.sampled_from(
    [
        "</tool_call>",
        '"}}',
        "[TOOL_CALLS]",
        "<|python_tag|>",
        'it\'s \\ "it"',
        "]",
        "<｜tool▁sep｜>",
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | TEXTS | AWKWARD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.from_regex(r"\A[a-z]{1,3}\Z"), inner, max_size=2)
    ),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {"city": TEXTS | AWKWARD, "days": st.integers()}, optional={"more": VALUES}
)
CALLS = st.lists(
    st.tuples(st.just("get_weather"), ARGUMENTS) | st.just(("now", {})), min_size=1, max_size=3
)


def can_say(name: str, calls: list[Call]) -> bool:
    """Whether a format has a way to write these values: some have no escapes."""
    written = repr(calls)
    if name == "xml":
        texts = [one for _, arguments in calls for one in arguments.values()]
        plain = all(isinstance(one, str | int) and not isinstance(one, bool) for one in texts)
        return plain and "</parameter>" not in written
    return name != "gemma" or "<escape>" not in written


@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS, before=st.sampled_from(["", "Let me see. \n", " < [ {"]), data=st.data())
@settings(max_examples=scaled(20))
def test_calls_are_read_as_they_were_written_wherever_they_are_cut(
    name: Any, calls: list[Call], before: str, data: st.DataObject
) -> None:
    if not can_say(name, calls):
        return
    text = FORMATS[name].write(calls)
    if name not in WHOLE_ANSWERS:
        text = before + text
    whole = read(name, [text])
    assert calls_of(whole) == calls
    said = "".join(part for kind, part in whole if kind == "text")
    assert said == ("" if name in WHOLE_ANSWERS else before.rstrip())
    assert read(name, list(text)) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    edges = [0, *cuts, len(text)]
    assert read(name, [text[a:b] for a, b in pairwise(edges)]) == whole


@pytest.mark.parametrize("name", FORMATS)
def test_a_text_that_ends_anywhere_tells_the_same_in_one_piece_and_in_many(name: Any) -> None:
    text = FORMATS[name].write([("get_weather", {"city": "Köln </x> \"'", "days": 2}), ("now", {})])
    for end in range(len(text)):
        assert read(name, [text[:end]]) == read(name, list(text[:end]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_is_cut_leaves_none_of_its_markers_behind(name: Any) -> None:
    text = FORMATS[name].write([("get_weather", {"city": "Köln", "days": 2}), ("now", {})])
    told: list[str] = []
    for end in range(1, len(text)):
        parts = read(name, text[:end], cut=True, required=True)
        assert read(name, [text[:end]], cut=True, required=True) == parts
        assert all(kind != "text" for kind, _ in parts), (text[:end], parts)
        names = [one for kind, one in parts if kind == "call"]
        assert names == ["get_weather", "now"][: len(names)]
        assert len(names) >= len(told)
        told = names
        said = "".join(one for kind, one in read(name, text[:end], cut=True) if kind == "text")
        if name == "llama":
            assert '"name":' not in said
        else:
            assert len(said) <= 1 or "functools".startswith(said), (text[:end], said)
    assert told == ["get_weather", "now"][: len(told)] != []


@pytest.mark.parametrize("name", FORMATS)
def test_text_that_is_cut_stays_text(name: Any) -> None:
    for text in ("It is", '{"title": "x', "a [1, 2", "<b> is bold, <table", "{", '{"name": "Ann'):
        assert read(name, text, cut=True) == [("text", text)]


@pytest.mark.parametrize("name", FORMATS)
@given(text=TEXTS | st.lists(AWKWARD | TEXTS, max_size=4).map("".join))
@settings(max_examples=scaled(20))
def test_text_without_calls_stays_as_it_is(name: Any, text: str) -> None:
    assert "".join(part for _, part in read(name, list(text))) == text
    assert all(kind == "text" for kind, _ in read(name, [text]))


WORDS = [
    *"{}[]()\"',:;=\\ \n",
    *('"name"', '"arguments"', '"parameters"', '{"name": "now"}', "now", "call:now", "a=1", "null"),
    *("<function=now>", "</function>", "<parameter=a>", "</parameter>", "```json", "functools"),
    '{"name": "now", "arguments": {"a": 1}}',
]


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data(), parallel=st.booleans())
@settings(max_examples=scaled(20))
def test_whatever_models_write_is_read_the_same_wherever_it_is_cut(
    name: Any, data: st.DataObject, parallel: bool
) -> None:
    markers = FORMATS[name].markers or ("now",)
    words = st.sampled_from(WORDS) | st.sampled_from(markers)
    text = "".join(data.draw(st.lists(words, max_size=20)))
    cut = data.draw(st.integers(0, len(text)))
    whole = read(name, [text], parallel=parallel)
    assert read(name, list(text), parallel=parallel) == whole
    assert read(name, [text[:cut], text[cut:]], parallel=parallel) == whole
    kinds = [kind for kind, _ in whole]
    assert all(before == "call" for before, kind in pairwise(kinds) if kind == "arguments")


@pytest.mark.parametrize("name", FORMATS)
def test_what_no_function_is_called_is_text(name: Any) -> None:
    text = FORMATS[name].write([("launch", {"at": "once"})])
    assert read(name, list(text)) == [("text", text)]


@pytest.mark.parametrize("name", FORMATS)
def test_only_one_call_is_made_where_they_may_not_be_parallel(name: Any) -> None:
    text = FORMATS[name].write([("now", {}), ("get_weather", {"city": "x", "days": 1})])
    assert calls_of(read(name, list(text), parallel=False)) == [("now", {})]


WRITTEN: list[tuple[Any, str]] = [
    ("hermes", '<tool_call>[{"name": "now", "arguments": {}}]</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>'),
    ("mistral", '[TOOL_CALLS]now[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}'),
    ("mistral", '[TOOL_CALLS]now{"a": 1}'),
    ("llama", '<|python_tag|>{"name": "now", "parameters": {"a": 1}}'),
    ("llama", '\n{"type": "function", "name": "now", "parameters": {"a": null}}'),
    ("phi", '<|tool_call|>[{"name": "now", "arguments": {"a": 1}}]<|/tool_call|>'),
    ("granite", '<|tool_call|> [{"name": "now", "arguments": {"a": 1}}]'),
    ("pythonic", "<|python_start|>[now(a=[1, {'b': true}], c=-1.5)]<|python_end|>"),
    ("gemma", '<|tool_call>call:now{a:<|"|>x<|"|>,b:[1,true,{c:null}]}<tool_call|>'),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
        '```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    (
        "xml",
        "<tool_call>\n<function=now>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call>",
    ),
]


@pytest.mark.parametrize(("name", "text"), WRITTEN)
def test_other_ways_to_write_a_call_are_read_too(name: Any, text: str) -> None:
    parts = read(name, list(text))
    assert {kind for kind, _ in parts} == {"call", "arguments"}
    assert all(call[0] == "now" for call in calls_of(parts))
    assert parts == read(name, [text])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "no'),
        ("hermes", '<tool_call>\n{"name": "now", '),
        ("pythonic", "[now(a=open('x'))]"),
        ("pythonic", "[now(1)]"),
        ("gemma", "<start_function_call>call:now{a:<escape>x"),
        ("mistral", "[TOOL_CALLS]now"),
        ("llama", '{"name": "Ada", "parameters": {}}'),
        ("gemma", "<start_function_call>call:now" + "{a:" * 100),
    ],
)
def test_what_is_no_whole_call_is_text(name: Any, text: str) -> None:
    assert read(name, list(text)) == [("text", text)]


def test_arguments_that_break_off_are_told_as_far_as_they_came() -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {"a": "b</tool_call> '
    assert read("hermes", list(text)) == [("call", "now"), ("arguments", '{"a": "b</tool_call> ')]
    text = '<tool_call>\n{"name": "now", "arguments": {"a": </tool_call> so'
    assert read("hermes", list(text))[:2] == [("call", "now"), ("arguments", '{"a": ')]


def test_a_marker_that_is_cut_off_behind_a_call_is_not_told() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n'
    expected = [("call", "now"), ("arguments", "{}")]
    for end in ("</tool_cal", "</tool_call>\n<tool_", "<"):
        assert read("hermes", [call + end]) == read("hermes", list(call + end)) == expected
    assert read("hermes", list(f"{call}</tool_call> 2 <")) == [*expected, ("text", "2 <")]


def test_arguments_are_told_while_they_are_written() -> None:
    reader = ToolParser(FORMATS["hermes"], FUNCTIONS)
    reader.push('<tool_call>\n{"name": "now", "arguments": {"a": ')
    assert [part.text for part in reader.push('"long te')] == ['"long te']
