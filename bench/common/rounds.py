"""The load of `serve` and `peers`: requests of several tenants, so many at once, and their figures.

Every tenant's requests share its system prompt, which is sent inline (so that any OpenAI-compatible
server gets the same load); questions never repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from bench.common.drivers import Ask, Driver, DriverError, Timing
from bench.common.figures import percentile
from bench.common.service import Service
from bench.common.workload import CountTokens, question, system_prompt
from bench.registry import BenchError
from engine.model.weights import resolve_model

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
"""API key and system prompt of each."""


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the load."""
    parser.add_argument("--tenants", type=int, default=4, help="tenants")
    parser.add_argument("--requests", type=int, default=8, help="requests of each tenant a round")
    parser.add_argument("--concurrency", type=int, default=8, help="requests under way at once")
    parser.add_argument("--system-tokens", type=int, default=512, help="tokens of a system prompt")
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--timeout-seconds", type=float, default=120.0, help="for one request")


def token_counter(model: str) -> CountTokens:
    """Counts tokens as the model's tokenizer does."""
    from transformers import AutoTokenizer

    folder = resolve_model(model, progress=lambda line: print(line, file=sys.stderr))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def system_prompts(options: argparse.Namespace, count: CountTokens) -> list[str]:
    """One for each tenant. Raises `BenchError` if one of that length cannot be made."""
    return [
        system_prompt(f"tenant-{number}", options.system_tokens, count)
        for number in range(options.tenants)
    ]


def registered(service: Service, systems: Sequence[str]) -> Tenants:
    """A new tenant for each system prompt, which is registered and warm."""
    return [
        (service.create_tenant(f"tenant-{number}", system), system)
        for number, system in enumerate(systems)
    ]


async def warm_up(
    driver: Driver, tenants: Tenants, options: argparse.Namespace, *, shorter: bool = False
) -> None:
    """One short request of each tenant. Raises `BenchError` for one that fails."""
    asks = _asks(tenants, 1, _WARM_UP_TOKENS, "warm-up")
    timings, _ = await send_round(driver, asks, options, shorter=shorter)
    failed = next((timing.error for timing in timings if timing.error), None)
    if failed is not None:
        raise BenchError(f"the warm-up failed: {failed}")


def round_of_asks(tenants: Tenants, options: argparse.Namespace, label: str) -> list[Ask]:
    """A round's requests, the tenants taking turns; none is like one of another label."""
    return _asks(tenants, options.requests, options.output_tokens, label)


def _asks(tenants: Tenants, requests: int, output_tokens: int, label: str) -> list[Ask]:
    return [
        Ask(
            api_key=api_key,
            system=system,
            question=question(f"{label}, {number}.{tenant}"),
            output_tokens=output_tokens,
        )
        for number in range(requests)
        for tenant, (api_key, system) in enumerate(tenants)
    ]


async def send_round(
    driver: Driver, asks: Sequence[Ask], options: argparse.Namespace, *, shorter: bool = False
) -> tuple[list[Timing], float]:
    """Send all requests, `concurrency` at a time; returns their timings and the wall time.

    An answer that is shorter than asked for is an error, unless `shorter` ones are expected.
    """
    waiting = list(reversed(asks))
    timings: list[Timing] = []

    async def work() -> None:
        while waiting:
            ask, timing = waiting.pop(), Timing()
            timings.append(timing)
            try:
                async with asyncio.timeout(options.timeout_seconds):
                    await driver.ask(ask, timing)
            except TimeoutError:
                came, limit = len(timing.arrivals), options.timeout_seconds
                timing.error = f"only {came} pieces of text came within {limit:.0f} s"
            except (DriverError, OSError) as error:
                timing.error = f"{type(error).__name__}: {error}"
            else:
                fits = timing.output_tokens == ask.output_tokens or shorter
                if not fits or not timing.arrivals:
                    timing.error = f"{timing.output_tokens} tokens instead of {ask.output_tokens}"

    started = perf_counter()
    await asyncio.gather(*(work() for _ in range(options.concurrency)))
    return timings, perf_counter() - started


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
