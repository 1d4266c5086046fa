"""The engine of `bench.formats.structured`, timed from outside."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np

from bench.common.stopwatch import replaced
from bench.formats.schemas import NUM_KINDS, Found, grammar_of
from engine.api import EngineRequest, Namespaces, SamplingParams
from engine.assembly.assemble import make_core
from engine.assembly.parts import load_parts
from engine.blocks.hashing import KEY_BYTES
from engine.config import EngineConfig
from engine.constraint.follower import Follower
from engine.grammar.grammars import Grammars

_PROMPT_TOKENS: Final = 64


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

    def measure(self, batches: Sequence[int], rounds: int) -> dict[int, Found]:
        """The rates of batches of each size, free and held in turns."""
        found = {batch: Found() for batch in batches}
        for batch in batches:  # once for whatever is done once, and for what is remembered
            self._rate(batch, held=True)
        self._mask_seconds.clear()
        for turn in range(rounds):
            for batch, one in found.items():
                for held in (turn % 2 == 0, turn % 2 == 1):
                    rates = one.held_rates if held else one.free_rates
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
        key = b"structured".ljust(KEY_BYTES, b".")
        return EngineRequest(
            request_id=next(self._names),
            tenant="bench",
            prompt=[(7919 * (number + 1) + 31 * i) % size for i in range(_PROMPT_TOKENS)],
            namespaces=Namespaces(shared_key=key, private_key=key),
            sampling=SamplingParams(
                max_tokens=self.num_tokens,
                temperature=1.0,
                seed=number,
                stop_token_ids=ends if held else (),
            ),
            grammar=grammar_of(number, self.num_tokens) if held else None,
        )
