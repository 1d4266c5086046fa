"""What engines behind Ray Serve cost: tokens a second and first tokens, beside one engine.

One engine in a process of its own, as `partywall serve` has it, and a cluster on this machine take
turns at the same load; so does a cluster of each size. The replicas of a cluster share the cores
that the one engine has all of. One replica so shows what Ray costs, several what dividing the
machine costs besides.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from statistics import median
from time import perf_counter
from typing import Any, Final, Protocol

from rich.table import Table

from app.cluster.launch import ENVIRONMENT
from bench.common.machine import warn_if_busy
from bench.registry import BenchError, Result, parameters
from engine.api import EngineRequest, Namespaces, SamplingParams, TokenDelta
from engine.blocks.hashing import derive_key
from engine.config import EngineConfig
from engine.model.weights import DEFAULT_MODEL, resolve_model
from engine.run.threads import compute_threads
from engine.serve.process import ProcessEngine

SIZES: Final = (1, 2, 4)
FIGURES: Final = {
    "tokens_per_s_alone": "tokens a second of one engine, all streams together, median",
    "ttft_ms_alone": "time to the first token of a lone request to it, ms, median",
} | {
    name: meaning
    for size in SIZES
    for name, meaning in (
        (f"tokens_per_s_ratio_{size}", f"tokens a second of {size} replicas, over one engine's"),
        (f"ttft_added_ms_{size}", f"first token of {size} replicas less that of one engine, ms"),
    )
}
_READY_SECONDS: Final = 300.0


class _Engine(Protocol):
    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """See `EngineClient`."""
        ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model that is run")
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--streams", type=int, default=16, help="at once")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-memory-mib", type=int, default=256, help="of each engine")


def run(options: argparse.Namespace) -> Result:
    """Measure one cluster after the other, each in turns with the one engine."""
    os.environ |= ENVIRONMENT
    foreign = warn_if_busy()
    beds = [asyncio.run(_Bed(options, size).measure()) for size in options.sizes]
    figures = {
        "tokens_per_s_alone": median(rate for bed in beds for rate in bed.rates["alone"]),
        "ttft_ms_alone": 1000 * median(time for bed in beds for time in bed.firsts["alone"]),
    }
    table = Table("replicas", "tokens/s", "of one engine's", "first token ms", "of one engine's")
    for bed in beds:
        rate, alone = (median(bed.rates[kind]) for kind in ("cluster", "alone"))
        first, first_alone = (1000 * median(bed.firsts[kind]) for kind in ("cluster", "alone"))
        figures[f"tokens_per_s_ratio_{bed.size}"] = rate / alone
        figures[f"ttft_added_ms_{bed.size}"] = first - first_alone
        shown = f"{rate:.0f}", f"{alone:.0f}", f"{first:.1f}", f"{first_alone:.1f}"
        table.add_row(str(bed.size), *shown)
    return Result(parameters(options, foreign_load_percent=foreign), figures, [table])


class _Bed:
    """One engine and a cluster, and what they have done."""

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self.size = size
        self.rates: dict[str, list[float]] = {"alone": [], "cluster": []}
        """Tokens a second, by round."""
        self.firsts: dict[str, list[float]] = {"alone": [], "cluster": []}
        """Seconds to the first token of lone requests."""
        self._options = options
        self._draw = random.Random(0)
        self._vocab_size = 0
        self._num_requests = 0

    async def measure(self) -> _Bed:
        """Give both the same load in turns."""
        async with self._engines() as engines:
            for number in range(1 + self._options.rounds):
                for kind, engine in engines.items():
                    rate, firsts = await self._round(engine)
                    if number:  # the first one finds everything new
                        self.rates[kind].append(rate)
                        self.firsts[kind] += firsts
        return self

    @asynccontextmanager
    async def _engines(self) -> AsyncIterator[dict[str, _Engine]]:
        try:
            from app.cluster.client import ClusterEngine
            from app.cluster.deployment import Cluster
        except ModuleNotFoundError as error:
            raise BenchError(f"needs the extra partywall[cluster]: {error}") from error
        cluster = ClusterEngine(Cluster(self._deployment()), _READY_SECONDS)
        alone = ProcessEngine(self._config(compute_threads(None)))
        try:
            await asyncio.gather(alone.start(), cluster.start())
            async with asyncio.timeout(_READY_SECONDS):
                while cluster.num_ready < self.size:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            self._vocab_size = alone.info.vocab_size
            yield {"alone": alone, "cluster": cluster}
        finally:
            await asyncio.gather(alone.close(), cluster.close())

    def _deployment(self) -> Any:
        from app.cluster.deployment import Deployment
        from app.cluster.replica import ReplicaOptions

        threads = max(1, compute_threads(None) // self.size)
        options = ReplicaOptions(
            engine=self._config(threads),
            rebuild_seconds=60,
            silence_seconds=120,
            loading_seconds=300,
        )
        return Deployment(
            options=options,
            num_replicas=self.size,
            cpus=threads,
            gpus=0,
            address=None,
            environment=ENVIRONMENT,
            drain_seconds=1,
        )

    def _config(self, threads: int) -> EngineConfig:
        return EngineConfig(
            model_path=str(resolve_model(self._options.model)),
            kv_memory_bytes=self._options.kv_memory_mib << 20,
            threads=threads,
        )

    async def _round(self, engine: _Engine) -> tuple[float, list[float]]:
        """Tokens a second of all streams at once, and first tokens of some that come alone."""
        start = perf_counter()
        outputs = await asyncio.gather(
            *(self._run(engine, self._options.output_tokens) for _ in range(self._options.streams))
        )
        seconds = perf_counter() - start
        firsts = [(await self._run(engine, 2))[1] for _ in range(4)]
        return sum(count for count, _ in outputs) / seconds, firsts

    async def _run(self, engine: _Engine, max_tokens: int) -> tuple[int, float]:
        """How many tokens came, and seconds to the first one."""
        start, first, count = perf_counter(), 0.0, 0
        async with aclosing(engine.generate(self._request(max_tokens))) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                if delta.error is not None:
                    raise BenchError(delta.error)
                first = first or perf_counter() - start
                count += len(delta.token_ids)
        return count, first

    def _request(self, max_tokens: int) -> EngineRequest:
        self._num_requests += 1
        key = derive_key(bytes(32), "bench cluster")
        count = self._options.prompt_tokens
        prompt: Sequence[int] = [self._draw.randrange(self._vocab_size) for _ in range(count)]
        return EngineRequest(
            request_id=f"bench-{self._num_requests}",
            tenant="bench",
            prompt=list(prompt),
            namespaces=Namespaces(shared_key=key, private_key=key),
            sampling=SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, temperature=0.0),
        )
