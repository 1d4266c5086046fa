"""Answers at random that a grammar allows, over a vocabulary of bytes, markers and some words."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.api import Grammar
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.vocabulary import Vocabulary, load_vocabulary

END = "<|im_end|>"
WORDS = ("</parameter>", "\n</parameter>", '"}', "\n", "true", "12", "ä", "[{", "functools")
_CLOSING = frozenset('"}])')
_MOST_TOKENS = 3000


def new_tokenizer(control: Collection[str], spelled: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """Every byte is a token, and so are `spelled` texts, and the markers of `control`."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    for text in dict.fromkeys((*WORDS, *spelled)):
        [(mapped, _)] = byte_level.pre_tokenize_str(text)
        if mapped not in tokens:
            tokens.append(mapped)
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in (END, *control)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)


def vocabulary_of(tokenizer: PreTrainedTokenizerFast, folder: Path) -> Vocabulary:
    """What the engine makes of the tokenizer."""
    tokenizer.save_pretrained(folder)
    vocabulary = load_vocabulary(folder, len(tokenizer), (tokenizer.eos_token_id,))
    assert vocabulary is not None
    return vocabulary


def walk(
    grammar: Grammar,
    tokenizer: PreTrainedTokenizerFast,
    vocabulary: Vocabulary,
    seed: int,
    start: Sequence[int] = (),
) -> list[int]:
    """The tokens of a whole output behind a `start`, without the end. What closes something is
    preferred.
    """
    compiled = CompiledGrammar(grammar, vocabulary)
    matcher, words = compiled.matcher(), vocabulary.new_words(1)
    weights = np.array([_weight(tokenizer.decode([one])) for one in range(len(tokenizer))])
    chance, drawn = random.Random(seed), list(start)
    assert matcher.consume_tokens(drawn), (tokenizer.decode(drawn), grammar.source)
    while len(drawn) < _MOST_TOKENS:
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        assert not matcher.is_error(), matcher.get_error()
        bits = np.unpackbits((words & compiled.drawable).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        assert len(allowed), (tokenizer.decode(drawn), grammar.source)
        [token] = chance.choices(allowed.tolist(), weights[allowed].tolist())
        if token == tokenizer.eos_token_id:
            return drawn
        assert matcher.consume_tokens([token])
        drawn.append(token)
    raise AssertionError(tokenizer.decode(drawn)[-500:])


def _weight(text: str) -> float:
    if text == END:
        return 100.0
    if len(text) > 1 or text in _CLOSING:
        return 8.0
    if text.isalnum() and text.isascii():
        return 1.0
    return 0.3 if text in "\n ,.-" else 0.02
