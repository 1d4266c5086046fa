import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.generation.detokenizer import Detokenizer
from app.generation.token_texts import token_bytes
from app.prompt.tokenizer import load_tokenizer
from engine.model.weights import DEFAULT_MODEL, resolve_model
from tests.effort import scaled

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


@pytest.fixture(scope="module")
def spaced() -> PreTrainedTokenizerBase:
    """Words that lose their space at the start of a text, bytes for whatever is no word."""
    words = ["▁a", "▁b", "a", "b", ",", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "a"))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


@settings(max_examples=scaled(80))
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
    assert "".join(parts) + detokenizer.finish() == text
    if "�" not in text:
        assert all("�" not in part for part in parts), "half a character was shown"


def test_the_end_of_turn_token_is_not_text(tokenizer: PreTrainedTokenizerBase) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([*encode(tokenizer, "bye"), END]) == "bye"
    assert detokenizer.finish() == ""


@settings(max_examples=scaled(60))
@given(ids=st.lists(st.integers(0, 5 + 255), max_size=30), seed=st.integers(0, 1000))
def test_tokens_that_depend_on_their_neighbours_are_decoded_beside_them(
    spaced: PreTrainedTokenizerBase, ids: list[int], seed: int
) -> None:
    whole = spaced.decode(ids)
    if "�" in whole:
        return  # bytes that are no text may be replaced one by one or together
    rng, detokenizer, shown = random.Random(seed), Detokenizer(spaced), ""
    while ids:
        count = rng.randrange(1, 4)
        shown += detokenizer.push(ids[:count])
        ids = ids[count:]
    assert shown + detokenizer.finish() == whole


@pytest.fixture(scope="module")
def real() -> PreTrainedTokenizerBase:
    return load_tokenizer(resolve_model(DEFAULT_MODEL))


def test_every_token_of_the_real_tokenizer_has_the_bytes_that_it_decodes_to(
    real: PreTrainedTokenizerBase,
) -> None:
    table = token_bytes(real)
    assert table is not None
    texts = real.batch_decode([[token] for token in range(len(real))], skip_special_tokens=True)
    assert [table[token].decode(errors="replace") for token in range(len(real))] == texts


@settings(max_examples=scaled(60))
@given(ids=st.lists(st.integers(0, 49_151), max_size=30))
def test_any_tokens_of_the_real_tokenizer_join_to_what_it_decodes_them_to(
    real: PreTrainedTokenizerBase, ids: list[int]
) -> None:
    detokenizer = Detokenizer(real)
    shown = "".join(detokenizer.push([token]) for token in ids) + detokenizer.finish()
    assert shown == real.decode(ids, skip_special_tokens=True)
