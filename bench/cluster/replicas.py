"""What engines behind Ray Serve cost: tokens a second and first tokens, beside the same without it.

A cluster on this machine and as many engines in processes of their own, as `partywall serve` has
one, take turns at the same load; so does a cluster of each size. The engines share the cores, and
those without Ray take requests in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from statistics import median
from time import perf_counter
from typing import Any, Final

from rich.table import Table

from app.cluster.launch import ENVIRONMENT
from bench.cluster import chaos
from bench.common import engines
from bench.common.options import add_model, engine_config
from bench.registry import BenchError, Result
from engine.api import EngineRequest
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from engine.system.threads import compute_threads

SIZES: Final = (1, 2, 4)
FIGURES: Final = chaos.FIGURES | {
    name: meaning
    for size in SIZES
    for name, meaning in (
        (f"tokens_per_s_{size}", f"tokens a second of {size} replicas, median"),
        (f"tokens_per_s_ratio_{size}", f"that, over {size} engines without Ray"),
        (f"ttft_added_ms_{size}", f"first token of {size} replicas less that without Ray, ms"),
    )
}
_READY_SECONDS: Final = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--chaos", action="store_true", help="kill and halt parts under streams")
    chaos.add_arguments(parser)
    add_model(parser)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-memory-mib", type=int, default=256, help="of each engine")


def run(options: argparse.Namespace) -> Result:
    """Measure one cluster after the other, each in turns with as many engines without Ray."""
    os.environ |= ENVIRONMENT
    if options.chaos:
        return chaos.run(options)
    beds = [_measured(options, size) for size in options.sizes]
    figures: dict[str, float] = {}
    table = Table("replicas", "tokens/s", "without Ray", "first token ms", "without Ray")
    for bed in beds:
        rate, plain = (median(bed.rates[kind]) for kind in ("cluster", "plain"))
        first, first_plain = (1000 * median(bed.firsts[kind]) for kind in ("cluster", "plain"))
        figures[f"tokens_per_s_{bed.size}"] = rate
        figures[f"tokens_per_s_ratio_{bed.size}"] = rate / plain
        figures[f"ttft_added_ms_{bed.size}"] = first - first_plain
        shown = f"{rate:.0f}", f"{plain:.0f}", f"{first:.1f}", f"{first_plain:.1f}"
        table.add_row(str(bed.size), *shown)
    return Result(figures, [table])


def _measured(options: argparse.Namespace, size: int) -> _Bed:
    """In a process of its own: Ray starts by forking, and what it has left running once may hang
    the next fork."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_measure, options, size).result()


def _measure(options: argparse.Namespace, size: int) -> _Bed:
    return asyncio.run(_Bed(options, size).measure())


class _Bed:
    """A cluster and as many plain engines, and what they have done."""

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self.size = size
        self.rates: dict[str, list[float]] = {"plain": [], "cluster": []}
        """Tokens a second, by round."""
        self.firsts: dict[str, list[float]] = {"plain": [], "cluster": []}
        """Seconds to the first token of lone requests."""
        self._options = options
        self._threads = max(1, compute_threads(None) // size)
        """Of each engine."""
        self._draw = random.Random(0)
        self._vocab_size = 0
        self._num_requests = 0

    async def measure(self) -> _Bed:
        """Give both the same load in turns."""
        async with self._engines() as engines:
            for number in range(1 + self._options.rounds):
                for kind, those in engines.items():
                    rate, firsts = await self._round(those)
                    if number:  # the first one finds everything new
                        self.rates[kind].append(rate)
                        self.firsts[kind] += firsts
        return self

    @asynccontextmanager
    async def _engines(self) -> AsyncIterator[dict[str, Sequence[engines.Generating]]]:
        try:
            from app.cluster.door.client import ClusterEngine
            from app.cluster.node.deployment import Cluster
        except ModuleNotFoundError as error:
            raise BenchError(f"needs the extra partywall[cluster]: {error}") from error
        cluster = ClusterEngine(Cluster(self._deployment()), _READY_SECONDS)
        plain = [ProcessEngine(self._config) for _ in range(self.size)]
        try:
            await asyncio.gather(cluster.start(), *(engine.start() for engine in plain))
            async with asyncio.timeout(_READY_SECONDS):
                while cluster.num_ready < self.size:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            self._vocab_size = cluster.info.vocab_size
            yield {"plain": plain, "cluster": [cluster]}
        finally:
            await asyncio.gather(cluster.close(), *(engine.close() for engine in plain))

    def _deployment(self) -> Any:
        from app.cluster.node.deployment import Deployment
        from app.cluster.node.replica import ReplicaOptions

        options = ReplicaOptions(
            engine=self._config,
            rebuild_seconds=60,
            silence_seconds=120,
            loading_seconds=300,
        )
        return Deployment(
            options=options,
            num_replicas=self.size,
            most_replicas=self.size,
            queue_seconds=1,
            idle_seconds=1,
            cpus=self._threads,
            gpus=0,
            address=None,
            environment=ENVIRONMENT,
            drain_seconds=1,
        )

    @property
    def _config(self) -> EngineConfig:
        memory = self._options.kv_memory_mib << 20
        return engine_config(self._options, kv_memory_bytes=memory, threads=self._threads)

    async def _round(self, engines: Sequence[engines.Generating]) -> tuple[float, list[float]]:
        """Tokens a second of all streams at once, and first tokens of some that come alone."""
        start = perf_counter()
        outputs = await asyncio.gather(
            *(
                self._run(engines[number % len(engines)], self._options.output_tokens)
                for number in range(self._options.streams)
            )
        )
        seconds = perf_counter() - start
        firsts = [(await self._run(engines[0], 2))[1] for _ in range(4)]
        return sum(count for count, _ in outputs) / seconds, firsts

    async def _run(self, engine: engines.Generating, max_tokens: int) -> tuple[int, float]:
        """How many tokens came, and seconds to the first one."""
        start, first, count = perf_counter(), 0.0, 0
        async for delta in engines.deltas_of(engine, self._request(max_tokens)):
            first = first or perf_counter() - start
            count += len(delta.token_ids)
        return count, first

    def _request(self, max_tokens: int) -> EngineRequest:
        self._num_requests += 1
        name, count = f"bench-{self._num_requests}", self._options.prompt_tokens
        prompt = [self._draw.randrange(self._vocab_size) for _ in range(count)]
        return engines.request(name, prompt, max_tokens, min_tokens=max_tokens)
