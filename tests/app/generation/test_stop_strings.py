from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from app.generation.detokenizer import Detokenizer


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def test_half_a_stop_string_is_never_shown(tokenizer: PreTrainedTokenizerBase) -> None:
    detokenizer = Detokenizer(tokenizer, ["STOP"])
    shown = ""
    for token in encode(tokenizer, "a ST b STOP c"):
        shown += detokenizer.push([token])
        assert not shown.endswith("S")
    assert shown == "a ST b "
    assert detokenizer.stopped
    assert detokenizer.finish() == ""


def test_the_earliest_of_several_stop_strings_wins(tokenizer: PreTrainedTokenizerBase) -> None:
    detokenizer = Detokenizer(tokenizer, ["world", "o w"])
    assert detokenizer.push(encode(tokenizer, "hello world")) == "hell"
    assert detokenizer.stopped


def test_a_beginning_that_does_not_become_a_stop_string_is_shown(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    detokenizer = Detokenizer(tokenizer, ["###"])
    assert detokenizer.push(encode(tokenizer, "a##")) == "a"
    assert detokenizer.finish() == "##"
    assert not detokenizer.stopped


def test_what_comes_before_the_shortest_output_stops_nothing(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    detokenizer = Detokenizer(tokenizer, ["ab"], min_tokens=3)
    assert detokenizer.push(encode(tokenizer, "ab")) == "ab"
    assert detokenizer.push(encode(tokenizer, "a")) == "a", "not even where a stop string begins"
    assert detokenizer.push(encode(tokenizer, "bxaby")) == "bx"
    assert detokenizer.stopped
