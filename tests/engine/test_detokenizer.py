import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from engine.detokenizer import Detokenizer

END = 256


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """One token a byte, so that every character beyond ASCII arrives in pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.add_special_tokens({"eos_token": "<|im_end|>"})
    return fast


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=40), seed=st.integers(0, 1000))
def test_whatever_the_deltas_their_texts_join_to_the_whole(
    tokenizer: PreTrainedTokenizerBase, text: str, seed: int
) -> None:
    rng = random.Random(seed)
    ids = encode(tokenizer, text)
    detokenizer = Detokenizer(tokenizer)
    parts = []
    while ids:
        count = rng.randrange(1, 4)
        parts.append(detokenizer.push(ids[:count]))
        ids = ids[count:]
    assert "".join(parts) + detokenizer.finish() == text == detokenizer.text
    if "�" not in text:
        assert all("�" not in part for part in parts), "half a character was shown"


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


def test_the_end_of_turn_token_is_not_text(tokenizer: PreTrainedTokenizerBase) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([*encode(tokenizer, "bye"), END]) == "bye"
    assert detokenizer.finish() == ""
