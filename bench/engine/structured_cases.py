"""The schemas of `bench.engine.structured`, and the engine that is timed with them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np

from bench.common.stopwatch import replaced
from engine.api import EngineRequest, Grammar, Namespaces, SamplingParams
from engine.blocks.hashing import KEY_BYTES
from engine.config import EngineConfig
from engine.grammar.grammars import Grammars
from engine.grammar.vocabulary import Words
from engine.run.assemble import load_parts, make_runner
from engine.run.masks import Follower
from engine.serve.core import EngineCore

_PROMPT_TOKENS: Final = 64
_TEXT: Final[dict[str, Any]] = {"type": "string"}
_SCHEMAS: Final[list[dict[str, Any]]] = [
    {"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    {"title": _TEXT, "tags": {"type": "array", "items": _TEXT, "maxItems": 5}, "score": {}},
    {"kind": {"enum": ["wall", "door", "window", "roof"]}, "width_mm": {"type": "number"}},
    {"date": {"type": "string", "format": "date"}, "mail": {"type": "string", "format": "email"}},
    {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,6}$"}, "open": {"type": "boolean"}},
    {"who": {"anyOf": [_TEXT, {"type": "null"}]}, "why": {"type": "string", "maxLength": 200}},
    {"at": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}},
    {f"field_{number}": _TEXT for number in range(30)},
]
"""Of records as clients ask for them: the properties of each, all required."""


@dataclass
class Found:
    """A batch's tokens a second in each round, free and held."""

    free_rates: list[float] = field(default_factory=list)
    held_rates: list[float] = field(default_factory=list)

    @property
    def free(self) -> float:
        """The median without schemas."""
        return median(self.free_rates)

    @property
    def held(self) -> float:
        """The same with them."""
        return median(self.held_rates)

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.held_rates, self.free_rates, strict=True)
        return median(held / free for held, free in pairs)


class StructuredBench:
    """One engine, timed from outside."""

    def __init__(self, config: EngineConfig, num_tokens: int) -> None:
        """Load the model. Each sequence writes `num_tokens`."""
        parts = load_parts(config)
        assert parts.vocabulary is not None, "a model without a tokenizer"
        self.dtype = parts.info.dtype
        self._info = parts.info
        self._vocabulary = parts.vocabulary
        self._num_tokens = num_tokens
        runner, _ = make_runner(parts)
        grammars = Grammars(parts.vocabulary)
        self._core = EngineCore(parts.config, parts.info, runner, parts.costs, grammars=grammars)
        self._mask_seconds: list[float] = []
        self._first_seconds: list[float] = []
        self._names = map(str, itertools.count())

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

    def _rate(self, batch: int, *, held: bool) -> float:
        """Tokens a second of the steps behind the one that has computed the last prompt."""
        for number in range(batch):
            self._core.submit(self._request(number, held=held))
        count, start = 0, 0.0
        with replaced(Follower, "fill", self._timed(Follower.fill)):
            running: set[str] = set()
            while not self._core.is_idle:
                deltas = self._core.step()
                assert all(delta.error is None for delta in deltas)
                if start:
                    count += sum(len(delta.token_ids) for delta in deltas)
                running |= {delta.request_id for delta in deltas}
                if not start and len(running) == batch:
                    start = perf_counter()
        return count / (perf_counter() - start)

    def _timed(self, fill: Callable[..., str | None]) -> Callable[..., str | None]:
        def timed(follower: Follower, words: Words, drafts: Sequence[int]) -> str | None:
            start = perf_counter()
            try:
                return fill(follower, words, drafts)
            finally:
                self._mask_seconds.append((perf_counter() - start) / len(words))

        return timed

    def _time_first(self) -> None:
        """How long each schema takes that nobody has sent before."""
        for number in range(len(_SCHEMAS)):
            grammars = Grammars(self._vocabulary)
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
                max_tokens=self._num_tokens,
                temperature=1.0,
                seed=number,
                stop_token_ids=ends if held else (),
            ),
            grammar=_grammar(_SCHEMAS[number % len(_SCHEMAS)], self._num_tokens) if held else None,
        )


def _grammar(properties: dict[str, Any], num_records: int) -> Grammar:
    """So many records."""
    record = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    source = json.dumps({"type": "array", "items": record, "minItems": num_records})
    return Grammar(kind="json_schema", source=source)
