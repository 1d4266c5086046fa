"""Whether the time to the first text tells a tenant what its neighbour has sent.

"Auditing Prompt Caching in Language Model APIs" (Gu et al., ICML 2025): if a prompt that another
tenant has sent is answered faster than one that nobody has, a stranger can guess prompts. The two
samples of times are compared with the two-sample Kolmogorov-Smirnov test. The same test within one
tenant, whose own prompts are cached, must see the difference: it shows that this one could.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from typing import Final, Literal

from app.isolation_audit.statistics import same_distribution
from bench.common.drivers import Ask, Driver, DriverError, HttpDriver, Timing
from bench.common.figures import percentile
from bench.common.options import add_model, service_flags
from bench.common.service import Service, running_service, served_model
from bench.common.workload import passage
from bench.registry import BenchError, Result

Kind = Literal["neighbour's", "fresh to neighbour", "own", "fresh to owner"]

FIGURES: Final = {
    "ks_p_neighbour": "p-value that the neighbour's prompts and fresh ones are timed alike: a "
    "leak would make it small",
    "ks_p_own": "the same for a tenant's own prompts and fresh ones, which must differ: near 0",
    "cached_tokens_neighbour": "prompt tokens that hit in a neighbour's prompts, all together: 0",
    "cached_tokens_own": "prompt tokens that hit in a tenant's own prompts, all together",
    "ttft_ms_p50_neighbour": "time to the first text of a neighbour's prompt, median, ms",
    "ttft_ms_p50_fresh": "the same tenant's for a prompt that nobody has sent, ms",
    "ttft_ms_p50_own": "for a tenant's own prompt, sent again, ms",
}
_KINDS: Final[tuple[Kind, ...]] = ("neighbour's", "fresh to neighbour", "own", "fresh to owner")
_QUESTION: Final = "Answer in one word."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--samples", type=int, default=250, help="samples a side of each test")
    parser.add_argument("--batch", type=int, default=10, help="samples of each kind in a batch")
    parser.add_argument("--prompt-words", type=int, default=32, help="words of a prompt")
    add_model(parser, "dtype", "kv_memory")
    parser.add_argument("--seed", type=int, default=0, help="of the order of requests")


def run(options: argparse.Namespace) -> Result:
    """Time requests one by one, all kinds in a random order, and compare."""
    with running_service(service_flags(options)) as service:
        return Result(_figures(asyncio.run(_measure(service, options))))


async def _measure(service: Service, options: argparse.Namespace) -> dict[Kind, list[Timing]]:
    """Batches, each of which primes its prompts first; so the cache need not hold all of them."""
    owner, neighbour = (service.create_tenant(name) for name in ("owner", "neighbour"))
    driver = HttpDriver(service.url, served_model(service.url, owner))
    draw = random.Random(options.seed)
    timings: dict[Kind, list[Timing]] = {kind: [] for kind in _KINDS}
    try:
        for number in range(-1, -(-options.samples // options.batch)):
            plan = _batch(number, options, owner, neighbour)
            for kind in ("neighbour's", "own"):
                for ask in plan[kind]:
                    await _timed(driver, Ask(**{**vars(ask), "api_key": owner}))
            measured = [(kind, ask) for kind in _KINDS for ask in plan[kind]]
            draw.shuffle(measured)
            for kind, ask in measured:
                timing = await _timed(driver, ask)
                if number >= 0:  # the first batch warms up
                    timings[kind].append(timing)
    finally:
        await driver.close()
    return {kind: found[: options.samples] for kind, found in timings.items()}


def _batch(
    number: int, options: argparse.Namespace, owner: str, neighbour: str
) -> dict[Kind, Sequence[Ask]]:
    """Prompts of one length that occur nowhere else."""
    sender: dict[Kind, str] = {
        "neighbour's": neighbour,
        "fresh to neighbour": neighbour,
        "own": owner,
        "fresh to owner": owner,
    }
    return {
        kind: [
            Ask(
                api_key=sender[kind],
                system=passage(f"{kind} {number}.{index}", options.prompt_words),
                question=_QUESTION,
                output_tokens=2,
                # Its tenant alone tells a user from another of that name. Nothing is found by
                # chance: all prompts begin with the few tokens of the chat template.
                user=f"{kind} {number}.{index}",
            )
            for index in range(options.batch)
        ]
        for kind in _KINDS
    }


async def _timed(driver: Driver, ask: Ask) -> Timing:
    timing = Timing()
    try:
        await driver.ask(ask, timing)
    except (DriverError, OSError) as error:
        raise BenchError(f"a request failed: {error}") from error
    if not timing.arrivals:
        raise BenchError("an answer had no text")
    return timing


def _figures(timings: dict[Kind, list[Timing]]) -> dict[str, float]:
    ttfts = {kind: [one.ttft_seconds for one in found] for kind, found in timings.items()}
    cached = {kind: sum(one.cached_tokens for one in found) for kind, found in timings.items()}
    return {
        "ks_p_neighbour": same_distribution(ttfts["neighbour's"], ttfts["fresh to neighbour"]),
        "ks_p_own": same_distribution(ttfts["own"], ttfts["fresh to owner"]),
        "cached_tokens_neighbour": float(cached["neighbour's"]),
        "cached_tokens_own": float(cached["own"]),
        "ttft_ms_p50_neighbour": percentile(ttfts["neighbour's"], 50) * 1000,
        "ttft_ms_p50_fresh": percentile(ttfts["fresh to neighbour"], 50) * 1000,
        "ttft_ms_p50_own": percentile(ttfts["own"], 50) * 1000,
    }
