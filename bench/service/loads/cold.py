"""*cold*: prompts that resemble no other from their first words on, alone and several at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from bench.common.drivers import Ask, Timing
from bench.common.figures import percentile
from bench.common.workload import CountTokens, exact_text, unique_start
from bench.service.loads.rounds import Target, send_round, summary

DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "concurrency": 8,
    "output_tokens": 16,
    "lengths": [256, 1024, 4096],
}
FIGURES: Final = {
    "ttft_ms_p50_alone_LENGTH": "cold: time to the first text of a unique prompt of LENGTH tokens, "
    "one request at a time, median, ms",
    "ttft_ms_p50_at_once_LENGTH": "cold: the same, --concurrency requests at once",
}
_ALONE: Final = 3
"""Requests of each length that have the server for themselves."""


@dataclass(frozen=True)
class Cold:
    """Of each length first some prompts one by one, then as many as come at once."""

    systems: Sequence[str]
    options: argparse.Namespace
    count: CountTokens

    @classmethod
    def of(cls, options: argparse.Namespace, count: CountTokens) -> Cold:
        """As the options say; there are no system prompts."""
        return cls([""] * options.tenants, options, count)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        seen: list[Timing] = []
        wall_seconds = 0.0
        found: dict[str, float] = {}
        for length in self.options.lengths:
            for name, requests, concurrency in (
                ("alone", _ALONE, 1),
                ("at_once", self.options.concurrency, self.options.concurrency),
            ):
                asks = self._asks(target, f"{label} {name}", length, requests)
                timings, seconds = await send_round(target, asks, concurrency=concurrency)
                good = [timing.ttft_seconds for timing in timings if timing.error is None]
                found[f"ttft_ms_p50_{name}_{length}"] = percentile(good, 50) * 1000
                seen += timings
                wall_seconds += seconds
        return summary(seen, wall_seconds) | found

    def _asks(self, target: Target, label: str, length: int, requests: int) -> list[Ask]:
        """Requests whose text has exactly that many tokens, none of which was seen before."""
        asks = []
        for number, (api_key, system) in zip(range(requests), cycle(target.tenants), strict=False):
            seed = f"cold {label} {length} {number}"
            asks.append(
                Ask(
                    api_key=api_key,
                    system=system,
                    question=exact_text(unique_start(seed), seed, length, self.count),
                    output_tokens=self.options.output_tokens,
                )
            )
        return asks
