"""A model's tokens as `llguidance` knows them, and which of them any grammar may allow."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

Words = npt.NDArray[np.int32]
"""A bit for each token of the vocabulary, lowest bits first."""

_log = logging.getLogger(__name__)
_ALL = -1
_TOKENIZER_FILE = "tokenizer.json"


class Vocabulary:
    """The tokens of one model."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int) -> None:
        """`vocab_size` is the number of scores that the model gives."""
        self.tokenizer = tokenizer
        size = max(vocab_size, tokenizer.vocab_size)
        self.num_words = -(-size // 32)
        ends = set(tokenizer.eos_tokens)
        self._plain = plain = np.zeros(32 * self.num_words, np.uint8)
        for token in range(min(vocab_size, tokenizer.vocab_size)):
            plain[token] = token in ends or not tokenizer.is_special_token(token)

    def drawable(self, control: Collection[int]) -> Words:
        """All that may be drawn: of control tokens these, and those that end. Lark can name all."""
        bits = self._plain.copy()
        bits[list(control)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def new_words(self, count: int) -> Words:
        """`count` masks that allow everything."""
        return np.full((count, self.num_words), _ALL, np.int32)


def load_vocabulary(
    folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> Vocabulary | None:
    """The vocabulary of a model's folder; `None` where its tokens' bytes, or its end, are unknown.

    It takes a fifth of a second, more for a large vocabulary, and holds Python's lock.
    """
    path, ends = folder / _TOKENIZER_FILE, list(eos_token_ids)
    if not ends or not path.is_file():
        return None
    # Read as it is: `transformers` would take twice as long to say the same.
    document = msgspec.json.decode(path.read_bytes()) | {"padding": None, "truncation": None}
    text = msgspec.json.encode(document).decode()
    try:
        tokenizer = LLTokenizer(text, n_vocab=_num_tokens(document, vocab_size), eos_token=ends)
    except ValueError as error:
        _log.warning("no output can be held to a grammar: %s: %s", path, error)
        return None
    return Vocabulary(tokenizer, vocab_size)


def _num_tokens(document: dict[str, Any], vocab_size: int) -> int:
    """As many as the model scores, or as the tokenizer has, if these are more."""
    added = (one["id"] for one in document.get("added_tokens", ()))
    return max(vocab_size, len(document["model"]["vocab"]), 1 + max(added, default=0))
