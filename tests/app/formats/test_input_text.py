"""The text of a custom tool, taken out of JSON however that is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats.tools.input_text import InputText


def taken(pieces: list[str]) -> tuple[str, bool]:
    reader = InputText()
    return "".join(map(reader.push, pieces)), reader.is_whole


@given(st.text(), st.booleans(), st.lists(st.integers(0, 200), max_size=6))
def test_however_json_is_cut_it_is_the_same_text(text: str, ascii: bool, cuts: list[int]) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii)
    places = sorted({0, len(written), *(cut for cut in cuts if cut < len(written))})
    pieces = [written[start:end] for start, end in pairwise(places)]
    assert taken(pieces) == (text, True)
    assert taken(list(written)) == (text, True)


@pytest.mark.parametrize("text", ["\U0001f600 é", 'a"b\\', "\x00\x1f", "\\u0041"])
def test_what_is_cut_is_the_beginning_of_the_text(text: str) -> None:
    written = json.dumps({"input": text})
    for end in range(len(written) - 2):
        found, is_whole = taken([written[:end]])
        assert text.startswith(found)
        assert not is_whole


def test_half_a_character_becomes_one_that_can_be_sent() -> None:
    assert taken(['{"input": "a\\ud83d', "\\", 'u0041\\ude00"}']) == ("a\ufffdA\ufffd", True)


@pytest.mark.parametrize("written", ["{}", "[1]", '{"input": 5}', "print(1)"])
def test_what_is_no_such_object_has_no_text(written: str) -> None:
    assert taken([written]) == ("", False)
