"""*shared* and *sampled*: tenants that share their system prompts, and questions that never repeat.

Every tenant's requests share its system prompt, which is sent inline (so that any OpenAI-compatible
server gets the same load).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.common.drivers import Ask, Sampling
from bench.common.workload import CountTokens, question, system_prompt
from bench.service.loads.rounds import Target, send_round, summary

DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "requests": 8,
    "concurrency": 8,
    "system_tokens": 512,
    "output_tokens": 64,
}
SAMPLED: Final = Sampling(temperature=1.0, top_p=0.95)


@dataclass(frozen=True)
class Steady:
    """So many requests of each tenant a round, so many at once."""

    systems: Sequence[str]
    options: argparse.Namespace
    sampling: Sampling

    @classmethod
    def shared(cls, options: argparse.Namespace, count: CountTokens) -> Steady:
        """Greedy answers. Raises `BenchError` if no system prompt of that length can be made."""
        return cls(system_prompts(options, count), options, Sampling())

    @classmethod
    def sampled(cls, options: argparse.Namespace, count: CountTokens) -> Steady:
        """The same, and every answer sampled."""
        return cls(system_prompts(options, count), options, SAMPLED)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        asks = [
            Ask(
                api_key=api_key,
                system=system,
                question=question(f"{label}, {number}.{tenant}"),
                output_tokens=self.options.output_tokens,
                sampling=self.sampling,
            )
            for number in range(self.options.requests)
            for tenant, (api_key, system) in enumerate(target.tenants)
        ]
        return summary(*await send_round(target, asks, concurrency=self.options.concurrency))


def system_prompts(options: argparse.Namespace, count: CountTokens) -> list[str]:
    """One for each tenant. Raises `BenchError` if one of that length cannot be made."""
    return [
        system_prompt(f"tenant-{number}", options.system_tokens, count)
        for number in range(options.tenants)
    ]
