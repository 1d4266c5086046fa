"""What prefill apart from decode could win at most over chunked prefill, at equal cores.

Two engines of one thread each, and requests that come at random (Poisson). *Both*: each engine
computes prompts, in chunks beside what it decodes, and half of the requests. *Apart*: one engine
computes prompts and their first tokens, the other one goes on with them. Its blocks are there
already, as if they had been handed over for nothing but the time of two copies through memory: so
*apart* is as fast as it could be made, and where it loses, building it is of no use.

The rates are parts of what both engines do together when eight requests are always under way. A
request is in time if its first token comes within `--ttft-seconds`, and the others with less than
`--itl-ms` between them on average and less than four times that at most. Goodput is the greatest of
the rates at which nine of ten are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from time import perf_counter
from typing import Final, Literal

import numpy as np
from msgspec import structs
from rich.table import Table

from bench.common import engines
from bench.common.figures import percentile
from bench.common.options import add_model, engine_config
from bench.registry import BenchError, Result
from engine.api import NOTHING_CACHED, EngineRequest
from engine.assembly.process import ProcessEngine

Way = Literal["both", "apart"]
WAYS: Final[tuple[Way, ...]] = ("both", "apart")
LOADS: Final[Mapping[str, Sequence[tuple[int, int]]]] = {
    "prompts": [(1024, 16)],
    "balanced": [(768, 64)],
    "answers": [(128, 128)],
    "mixed": [(1024, 16), (128, 128)],
}
"""Tokens of prompts and of answers, in turn."""
RATES: Final = (0.4, 0.6, 0.8)
FIGURES: Final = {
    f"{figure}_{way}_{load}": meaning
    for load in LOADS
    for way in WAYS
    for figure, meaning in (
        ("goodput", "requests a second of which nine of ten are in time, of the rates tried"),
        ("ttft_ms_p99", f"time to the first token at {RATES[1]:.0%} of capacity, ms"),
        ("itl_ms_p99", f"time between tokens at {RATES[1]:.0%} of capacity, ms"),
    )
}
_AT_ONCE: Final = 8


@dataclass(slots=True)
class Served:
    """When a request came, and its tokens."""

    came: float
    tokens: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds to its first token."""
        return self.tokens[0] - self.came

    @property
    def gaps(self) -> list[float]:
        """Seconds between its tokens."""
        return [later - one for one, later in pairwise(self.tokens)]

    def is_in_time(self, ttft: float, itl: float) -> bool:
        """Whether its tokens come as fast as that, in seconds."""
        gaps = self.gaps or [0.0]
        return self.ttft <= ttft and fmean(gaps) <= itl and max(gaps) <= 4 * itl


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser)
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=15.0, help="of arrivals, at each rate")
    parser.add_argument("--ttft-seconds", type=float, default=2.0)
    parser.add_argument("--itl-ms", type=float, default=50.0)
    parser.add_argument("--kv-memory-mib", type=int, default=2048, help="of each engine")


def run(options: argparse.Namespace) -> Result:
    """Measure both ways in turns, at rates that grow."""
    bench = _Bench(options)
    asyncio.run(bench.measure())
    return Result(bench.figures, [bench.table])


class _Bench:
    """Two engines, and what they have done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.figures: dict[str, float] = {}
        self.table = Table("load", "requests/s", "way", "in time", "TTFT p50", "p99", "ITL p99")
        self._options = options
        self._draw = random.Random(0)
        self._engines: list[ProcessEngine] = []
        self._copy_seconds_per_token = 0.0
        self._num_requests = 0
        self._num_sizes = 1
        """Of the load: each goes to both engines in turn."""

    async def measure(self) -> None:
        """All loads, one after the other."""
        async with self._running():
            self._copy_seconds_per_token = 2 * await self._token_bytes() / _bytes_per_second()
            for load in self._options.loads:
                await self._measure_load(load)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        memory = self._options.kv_memory_mib << 20
        config = engine_config(self._options, kv_memory_bytes=memory, threads=1)
        self._engines = [ProcessEngine(config) for _ in range(2)]
        try:
            await asyncio.gather(*(engine.start() for engine in self._engines))
            yield
        finally:
            await asyncio.gather(*(engine.close() for engine in self._engines))

    async def _token_bytes(self) -> float:
        """Of keys and values."""
        info = self._engines[0].info
        total: int = self._options.kv_memory_mib << 20
        return total / (info.num_blocks * info.block_size)

    async def _measure_load(self, load: str) -> None:
        sizes = LOADS[load]
        self._num_sizes = len(sizes)
        capacity = await self._capacity(sizes)
        most = int(capacity * RATES[-1] * self._options.seconds * 1.5) + 2
        prompts = [self._prompt(sizes[number % len(sizes)][0]) for number in range(most)]
        goodput: dict[Way, float] = dict.fromkeys(WAYS, 0.0)
        for share in RATES:
            rate = capacity * share
            for way in WAYS:
                if way == "apart":  # the other way may have taken some of their blocks
                    await asyncio.gather(*map(self._compute, prompts))
                served = await self._at_rate(way, rate, prompts, sizes)
                limits = self._options.ttft_seconds, self._options.itl_ms / 1000
                in_time = sum(one.is_in_time(*limits) for one in served) / len(served)
                if in_time >= 0.9:
                    goodput[way] = max(goodput[way], rate)
                ttft, itl = _percentiles(served)
                self.table.add_row(
                    load,
                    f"{rate:.2f}",
                    way,
                    f"{in_time:.0%}",
                    *(f"{1000 * one:.0f} ms" for one in (*ttft, itl)),
                )
                if share == RATES[1]:
                    self.figures[f"ttft_ms_p99_{way}_{load}"] = 1000 * ttft[1]
                    self.figures[f"itl_ms_p99_{way}_{load}"] = 1000 * itl
        for way in WAYS:
            self.figures[f"goodput_{way}_{load}"] = goodput[way]

    async def _capacity(self, sizes: Sequence[tuple[int, int]]) -> float:
        """Requests a second of both engines, each with half of what is under way."""
        until = perf_counter() + self._options.seconds / 2
        ended = 0

        async def keep_busy(number: int) -> None:
            nonlocal ended
            while perf_counter() < until:
                size, output = sizes[(number + ended) % len(sizes)]
                await self._both(number, self._prompt(size), output, Served(0.0))
                ended += 1

        start = perf_counter()
        await asyncio.gather(*map(keep_busy, range(_AT_ONCE)))
        return ended / (perf_counter() - start)

    async def _at_rate(
        self,
        way: Way,
        rate: float,
        prompts: Sequence[list[int]],
        sizes: Sequence[tuple[int, int]],
    ) -> list[Served]:
        """Requests that come at this rate, whether or not others are answered."""
        draw, start, at = random.Random(1), perf_counter(), 0.0
        serve = self._both if way == "both" else self._apart
        all_served: list[Served] = []
        tasks = []
        for number, prompt in enumerate(prompts):
            at += draw.expovariate(rate)
            if at > self._options.seconds:
                break
            await asyncio.sleep(start + at - perf_counter())
            served = Served(perf_counter())
            all_served.append(served)
            output = sizes[number % len(sizes)][1]
            tasks.append(asyncio.create_task(serve(number, prompt, output, served)))
        if not tasks:
            raise BenchError("seconds: nothing came; more are needed")
        await asyncio.gather(*tasks)
        return all_served

    async def _both(self, number: int, prompt: list[int], output: int, served: Served) -> None:
        """One engine computes all of it, without its cache."""
        request = structs.replace(self._request(prompt, output), cache=NOTHING_CACHED)
        engine = self._engines[number // self._num_sizes % 2]
        await _tokens(engine, request, served)

    async def _apart(self, number: int, prompt: list[int], output: int, served: Served) -> None:  # noqa: ARG002
        """The first engine computes the prompt; the second one has its blocks, and goes on."""
        request = structs.replace(self._request(prompt, 1), cache=NOTHING_CACHED)
        (first,) = await _tokens(self._engines[0], request, served)
        await asyncio.sleep(len(prompt) * self._copy_seconds_per_token)
        request = structs.replace(self._request(prompt, output), generated=[[first]])
        await _tokens(self._engines[1], request, served, is_there=True)

    async def _compute(self, prompt: list[int]) -> None:
        await _tokens(self._engines[1], self._request(prompt, 0), Served(0.0))

    def _prompt(self, size: int) -> list[int]:
        return [self._draw.randrange(self._engines[0].info.vocab_size) for _ in range(size)]

    def _request(self, prompt: list[int], output: int) -> EngineRequest:
        self._num_requests += 1
        return engines.request(f"bench-{self._num_requests}", prompt, output, min_tokens=output)


async def _tokens(
    engine: ProcessEngine, request: EngineRequest, served: Served, *, is_there: bool = False
) -> list[int]:
    """All of them; when they came is `served`. Raises `BenchError` for a prompt whose blocks are
    not there though they should be.
    """
    tokens: list[int] = []
    full = len(request.prompt) // engine.info.block_size * engine.info.block_size
    async for delta in engines.deltas_of(engine, request):
        if is_there and delta.token_ids and delta.cached_tokens < full:
            raise BenchError("kv_memory_mib: blocks were evicted; more of it is needed")
        tokens += delta.token_ids
        served.tokens += [perf_counter()] * len(delta.token_ids)
    return tokens


def _percentiles(all_served: Sequence[Served]) -> tuple[tuple[float, float], float]:
    """Of the time to the first token the median and the 99th, and of that between tokens, s."""
    ttft = [served.ttft for served in all_served]
    gaps = [gap for served in all_served for gap in served.gaps]
    return (percentile(ttft, 50), percentile(ttft, 99)), percentile(gaps, 99)


def _bytes_per_second() -> float:
    """At which memory is copied, by one core."""
    source = np.ones(64 << 20, np.uint8)
    target = np.zeros_like(source)
    start = perf_counter()
    for _ in range(4):
        np.copyto(target, source)
    return 4 * source.nbytes / (perf_counter() - start)
