"""Masks of xgrammar beside ours, on the way of the same outputs.

Both follow what an engine has written, a schema after the other, in one thread: a token is taken
and the mask behind it found. xgrammar is no dependency: where it is absent, its figures are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from bench.formats.schemas import grammar_of, schema_of
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.vocabulary import Vocabulary

Outputs = Mapping[int, list[int]]
"""By the schema's number, the tokens that were written to it."""
Step = Callable[[int | None], bool]
"""Takes a token, or none at the beginning, and finds what may come next; false if it refuses it."""
Begin = Callable[[int], Step]
"""A way along the output to the schema of that number."""


@dataclass
class Walked:
    """What a library took on its way."""

    first_seconds: list[float] = field(default_factory=list)
    """From a schema to the first mask."""
    mask_seconds: list[float] = field(default_factory=list)
    num_refused: int = 0
    """Outputs that it did not let pass to their ends."""

    def mask_us(self, percentile: float) -> float:
        """Of all masks but the first ones."""
        return 1e6 * float(np.percentile(self.mask_seconds, percentile))

    @property
    def first_ms(self) -> float:
        """The median."""
        return 1e3 * float(np.median(self.first_seconds))


def walk(begin: Begin, outputs: Outputs) -> Walked:
    """Follow each output with what `begin` makes of its schema."""
    found = Walked()
    for number, tokens in outputs.items():
        start = perf_counter()
        step = begin(number)
        step(None)
        found.first_seconds.append(perf_counter() - start)
        for token in tokens:
            start = perf_counter()
            goes_on = step(token)
            found.mask_seconds.append(perf_counter() - start)
            if not goes_on:
                found.num_refused += 1
                break
    return found


def ours(vocabulary: Vocabulary, num_records: int) -> Begin:
    """By llguidance, as the engine uses it."""

    def begin(number: int) -> Step:
        matcher = CompiledGrammar(grammar_of(number, num_records), vocabulary).matcher()
        words = vocabulary.new_words(1)

        def step(token: int | None) -> bool:
            goes_on = token is None or matcher.consume_token(token)
            matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            return goes_on

        return step

    return begin


def xgrammars(folder: Path, vocab_size: int, num_records: int) -> Begin:
    """By xgrammar, with blanks where they may be as with us. Raises `ImportError` without it."""
    xgrammar: Any = import_module("xgrammar")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)

    def begin(number: int) -> Step:
        compiler: Any = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        schema = json.dumps(schema_of(number, num_records))
        matcher: Any = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
        bits = xgrammar.allocate_token_bitmask(1, vocab_size)

        def step(token: int | None) -> bool:
            goes_on = token is None or matcher.accept_token(token)
            if goes_on:
                matcher.fill_next_token_bitmask(bits)
            return bool(goes_on)

        return step

    return begin
