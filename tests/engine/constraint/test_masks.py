"""Masks against another library: what a prefix of a match may go on with."""

import random
from pathlib import Path

import numpy as np
import pytest
import regex

from engine.api import Grammar
from engine.assembly.parts import Parts
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.vocabulary import Vocabulary
from tests.engine.grammar.constrained import VOCAB, save
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import EOS

PATTERNS = [
    "(yes|no), [a-z ]{3,9}[.!]",
    "-?(0|[1-9][0-9]{0,2})(,-?(0|[1-9][0-9]{0,2}))*",
    '\\{"(name|kind)":("[a-m]{0,4}"|[0-9]+)\\}',
    "(a|ab)(c|bcd)(d*)",
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder: Path = tmp_path_factory.mktemp("masks")
    save(folder)
    parts: Parts = load(folder, num_blocks=8)
    assert parts.vocabulary is not None
    return parts.vocabulary


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_allows_what_a_match_may_go_on_with(pattern: str, vocabulary: Vocabulary) -> None:
    """All of it, unless only one way is left: of that the usual tokens."""
    rng, compiled = random.Random(3), regex.compile(pattern)
    grammar = CompiledGrammar(Grammar(kind="regex", source=pattern), vocabulary)
    tokens = {token: vocabulary.tokenizer.decode_bytes([token]) for token in range(4, VOCAB)}
    written = {token: text for token, text in tokens.items() if text}  # but for the byte FF
    words, num_free = vocabulary.new_words(1), 0
    for _ in range(4):
        matcher, so_far = grammar.matcher(), b""
        for _ in range(30):
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            bits = np.unpackbits((words[0] & grammar.drawable).view(np.uint8), bitorder="little")
            allowed = set(np.flatnonzero(bits).tolist())
            right = {token for token, more in written.items() if fits(compiled, so_far + more)}
            if compiled.fullmatch(so_far.decode()):
                right.add(EOS)
            if matcher.compute_ff_tokens():
                assert allowed <= right
            else:
                num_free += 1
                assert allowed == right
            token = rng.choice(sorted(allowed))
            if token == EOS:
                break
            so_far += written[token]
            assert matcher.consume_token(token)
    assert num_free > 3


def fits(compiled: regex.Pattern[str], text: bytes) -> bool:
    """Whether some match begins so. No token of a pattern here has a part of a character."""
    try:
        return compiled.fullmatch(text.decode(), partial=True) is not None
    except UnicodeDecodeError:
        return False
