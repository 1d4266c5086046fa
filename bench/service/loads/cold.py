"""*cold*: prompts that resemble no other from their first words on, alone and several at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import inf
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
    "ttft_ms_p50_at_once_LENGTH": "cold: the same, --concurrency requests at once, of all "
    "--lengths in turn",
}
_ALONE: Final = 3
"""Requests of each length that have the server for themselves."""


@dataclass(frozen=True)
class Cold:
    """Prompts of each length one by one, then several at once, of all lengths in turn."""

    systems: Sequence[str]
    options: argparse.Namespace
    count: CountTokens

    @classmethod
    def of(cls, options: argparse.Namespace, count: CountTokens) -> Cold:
        """As the options say; there are no system prompts."""
        return cls([""] * options.tenants, options, count)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        lengths: Sequence[int] = self.options.lengths
        at_once: int = self.options.concurrency
        seen: list[Timing] = []
        wall_seconds = 0.0
        found: dict[str, float] = {}
        for name, wanted, concurrency in (
            ("alone", [length for length in lengths for _ in range(_ALONE)], 1),
            ("at_once", list(islice(cycle(lengths), at_once)), at_once),
        ):
            asks = self._asks(target, f"{label} {name}", wanted)
            timings, seconds = await send_round(target, asks, concurrency=concurrency)
            for length in sorted(set(wanted)):
                found[f"ttft_ms_p50_{name}_{length}"] = _ttft_ms_p50(
                    [one for one, tokens in zip(timings, wanted, strict=True) if tokens == length]
                )
            seen += timings
            wall_seconds += seconds
        return summary(seen, wall_seconds) | found

    def _asks(self, target: Target, label: str, lengths: Sequence[int]) -> list[Ask]:
        """Requests whose text has exactly that many tokens, none of which was seen before."""
        asks = []
        for number, length in enumerate(lengths):
            api_key, system = target.tenants[number % len(target.tenants)]
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


def _ttft_ms_p50(timings: Sequence[Timing]) -> float:
    """Of those that were answered; infinite if none was."""
    good = [timing.ttft_seconds for timing in timings if timing.error is None]
    return percentile(good, 50) * 1000 if good else inf
