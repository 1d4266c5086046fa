"""A round of requests: sent to one server, so many at once, and summed up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

from bench.common.drivers import Ask, Driver, DriverError, Timing
from bench.common.figures import percentile
from bench.common.service import Service
from bench.common.workload import question
from bench.registry import BenchError

LOAD_FIGURES: Final = {
    "output_tokens_per_s": "generated tokens a second, all requests together",
    "ttft_ms_p50": "time to the first text, median, ms",
    "ttft_ms_p99": "time to the first text, 99th percentile, ms",
    "itl_ms_p50": "time between two arrivals of text, median, ms",
    "itl_ms_p99": "time between two arrivals of text, 99th percentile, ms",
    "prompt_hit_ratio": "share of prompt tokens found in the prefix cache, as the server tells it",
    "errors": "requests that failed or were cut short, all rounds together",
}
"""Those of a `summary`."""
_WARM_UP_TOKENS = 8

Tenants = list[tuple[str, str]]
"""API key and system prompt of each; an empty one where the load has none."""


@dataclass(frozen=True)
class Target:
    """A server under load: how it is asked, who asks, and what counts as an answer."""

    driver: Driver
    tenants: Tenants
    timeout_seconds: float
    """For one answer."""
    shorter: bool = False
    """Whether answers may be shorter than asked for."""

    def fault(self, ask: Ask, timing: Timing) -> str | None:
        """Why an answer that has ended is none."""
        fits = timing.output_tokens == ask.output_tokens or self.shorter
        if fits and timing.arrivals:
            return None
        return f"{timing.output_tokens} tokens instead of {ask.output_tokens}"


def registered(service: Service, systems: Sequence[str]) -> Tenants:
    """A new tenant for each system prompt, which is registered and warm, unless it is empty."""
    return [
        (service.create_tenant(f"tenant-{number}", system or None), system)
        for number, system in enumerate(systems)
    ]


async def warm_up(target: Target) -> None:
    """One short request of each tenant. Raises `BenchError` for one that fails."""
    asks = [
        Ask(
            api_key=api_key,
            system=system,
            question=question(f"warm-up, {number}"),
            output_tokens=_WARM_UP_TOKENS,
        )
        for number, (api_key, system) in enumerate(target.tenants)
    ]
    timings, _ = await send_round(target, asks, concurrency=len(asks))
    failed = next((timing.error for timing in timings if timing.error), None)
    if failed is not None:
        raise BenchError(f"the warm-up failed: {failed}")


async def send_round(
    target: Target, asks: Sequence[Ask], *, concurrency: int
) -> tuple[list[Timing], float]:
    """Send all requests, so many at a time; returns the timing of each and the wall time."""
    waiting = list(enumerate(asks))[::-1]
    timings: dict[int, Timing] = {}

    async def work() -> None:
        while waiting:
            number, ask = waiting.pop()
            timings[number] = await answer(target, ask)

    started = perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return [timings[number] for number in range(len(asks))], perf_counter() - started


async def answer(target: Target, ask: Ask) -> Timing:
    """Have one request answered; its timing's error says why it was not."""
    timing = Timing()
    try:
        async with asyncio.timeout(target.timeout_seconds):
            await target.driver.ask(ask, timing)
    except TimeoutError:
        came, limit = len(timing.arrivals), target.timeout_seconds
        timing.error = f"only {came} pieces of text came within {limit:.0f} s"
    except (DriverError, OSError) as error:
        timing.error = f"{type(error).__name__}: {error}"
    else:
        timing.error = target.fault(ask, timing)
    return timing


def over_rounds(
    rounds: Sequence[Mapping[str, float]], **others: Callable[[list[float]], float]
) -> dict[str, float]:
    """Each figure's median over the rounds, but the sum of errors, and what `others` say."""
    reduce = {"errors": sum} | others
    return {
        name: reduce.get(name, median)([round_[name] for round_ in rounds]) for name in rounds[0]
    }


def summary(timings: Sequence[Timing], wall_seconds: float) -> dict[str, float]:
    """A round's figures. Raises `BenchError` if nothing succeeded."""
    good = [timing for timing in timings if timing.error is None]
    if not good:
        raise BenchError(f"every request failed; the first: {timings[0].error}")
    ttfts = [timing.ttft_seconds for timing in good]
    gaps = [gap for timing in good for gap in timing.gaps_seconds]
    prompt = sum(timing.prompt_tokens for timing in good)
    return {
        "output_tokens_per_s": sum(timing.output_tokens for timing in good) / wall_seconds,
        "ttft_ms_p50": percentile(ttfts, 50) * 1000,
        "ttft_ms_p99": percentile(ttfts, 99) * 1000,
        "itl_ms_p50": percentile(gaps, 50) * 1000,
        "itl_ms_p99": percentile(gaps, 99) * 1000,
        "prompt_hit_ratio": sum(timing.cached_tokens for timing in good) / max(1, prompt),
        "errors": float(len(timings) - len(good)),
    }
