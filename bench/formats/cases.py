"""What `bench structured` times: an engine from outside, and libraries alone on its outputs.

The libraries follow what the engine has written, a schema after the other, in one thread: a token
is taken and the mask behind it found. xgrammar is no dependency: where it is absent, its figures
are.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np
from transformers import AutoTokenizer

from bench.common import engines
from bench.common.figures import InTurns
from bench.common.stopwatch import replaced
from bench.formats.schemas import NUM_KINDS, grammar_of, schema_of
from engine.api import EngineRequest, SamplingParams
from engine.assembly.assemble import make_core
from engine.assembly.parts import load_parts
from engine.config import EngineConfig
from engine.constraint.follower import Follower
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.grammars import Grammars
from engine.grammar.vocabulary import Vocabulary

_PROMPT_TOKENS: Final = 64

Outputs = Mapping[int, list[int]]
"""By the schema's number, the tokens that were written to it."""
Step = Callable[[int | None], bool]
"""Takes a token, or none at the beginning, and finds what may come next; false if it refuses it."""
Begin = Callable[[int], Step]
"""A way along the output to the schema of that number."""


class StructuredBench:
    """One engine, timed from outside."""

    def __init__(self, config: EngineConfig, num_tokens: int) -> None:
        """Load the model. Each sequence writes `num_tokens`."""
        parts = load_parts(config)
        assert parts.vocabulary is not None, "a model without a tokenizer"
        self.dtype = parts.info.dtype
        self._info = parts.info
        self.vocabulary = parts.vocabulary
        self.num_tokens = num_tokens
        self._core = make_core(parts)
        self._mask_seconds: list[float] = []
        self._first_seconds: list[float] = []
        self._names = map(str, itertools.count())
        self.outputs: dict[int, list[int]] = {}
        """What has been written at last to each schema."""

    @property
    def vocab_size(self) -> int:
        """Scores that the model gives."""
        return self._info.vocab_size

    @property
    def first_mask_ms(self) -> float:
        """The median of all schemas."""
        return 1e3 * median(self._first_seconds)

    def mask_us(self, percentile: float) -> float:
        """Of all rows that were held."""
        return 1e6 * float(np.percentile(self._mask_seconds, percentile))

    def measure(self, batches: Sequence[int], rounds: int) -> dict[int, InTurns]:
        """The rates of batches of each size, free and held in turns."""
        found = {batch: InTurns() for batch in batches}
        for batch in batches:  # once for whatever is done once, and for what is remembered
            self._rate(batch, held=True)
        self._mask_seconds.clear()
        for turn in range(rounds):
            for batch, one in found.items():
                for held in (turn % 2 == 0, turn % 2 == 1):
                    rates = one.rates if held else one.plain_rates
                    rates.append(self._rate(batch, held=held))
            self._time_first()
        return found

    def forced_ratio(self, rounds: int) -> float:
        """Tokens a second of one answer to the schema of the most names: with what is forced
        drafted, over without.
        """
        last, ratios = NUM_KINDS - 1, []
        for _ in range(rounds + 1):
            drafted = self._rate(1, held=True, first=last)
            with replaced(Follower, "forced", lambda *_: ()):
                ratios.append(drafted / self._rate(1, held=True, first=last))
        return median(ratios[1:])

    def _rate(self, batch: int, *, held: bool, first: int = 0) -> float:
        """Tokens a second of the steps behind the one that has computed the last prompt."""
        requests = [self._request(first + number, held=held) for number in range(batch)]
        written: dict[str, list[int]] = {request.request_id: [] for request in requests}
        for request in requests:
            self._core.submit(request)
        count, start = 0, 0.0
        with replaced(Follower, "compute", self._timed(Follower.compute)):
            running: set[str] = set()
            while not self._core.is_idle:
                deltas = self._core.step()
                assert all(delta.error is None for delta in deltas)
                if start:
                    count += sum(len(delta.token_ids) for delta in deltas)
                for delta in deltas:
                    written[delta.request_id] += delta.token_ids
                running |= {delta.request_id for delta in deltas}
                if not start and len(running) == batch:
                    start = perf_counter()
        seconds = perf_counter() - start
        if held:
            self.outputs |= dict(enumerate(written.values(), first))
        return count / seconds

    def _timed(self, compute: Callable[[Follower, int], None]) -> Callable[..., None]:
        def timed(follower: Follower, address: int) -> None:
            start = perf_counter()
            compute(follower, address)
            self._mask_seconds.append(perf_counter() - start)

        return timed

    def _time_first(self) -> None:
        """How long each schema takes that nobody has sent before."""
        for number in range(NUM_KINDS):
            grammars = Grammars(self.vocabulary)
            start = perf_counter()
            grammars.submit(self._request(number, held=True))
            while grammars:
                grammars.ready(1.0)
            self._first_seconds.append(perf_counter() - start)

    def _request(self, number: int, *, held: bool) -> EngineRequest:
        """With schemas in turns; what is held cannot end before its tokens are written."""
        size, ends = self._info.vocab_size, self._info.eos_token_ids
        prompt = [(7919 * (number + 1) + 31 * i) % size for i in range(_PROMPT_TOKENS)]
        stop = ends if held else ()
        return engines.request(
            next(self._names),
            prompt,
            sampling=SamplingParams(max_tokens=self.num_tokens, seed=number, stop_token_ids=stop),
            grammar=grammar_of(number, self.num_tokens) if held else None,
        )


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
