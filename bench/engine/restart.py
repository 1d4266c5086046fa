"""How soon a conversation goes on after a restart: with its blocks from disk, warm, and cold.

Conversations are computed and leased in an engine of a process of its own, which is then killed by
SIGKILL, once their blocks are on disk. It comes back, and the next turn of each conversation is
timed to its first token; so are, before the kill, the turn that finds all blocks in memory, and a
conversation as long that nobody has seen. The three kinds take turns; conversations differ.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from rich.table import Table

from bench.common import engines
from bench.common.options import add_model, engine_config
from bench.registry import BenchError, Result
from engine.api import CachePolicy, EngineRequest
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig

FIGURES: Final = {
    "ttft_ms_cold": "time to the first token of a conversation that nobody has seen, ms, median",
    "ttft_ms_warm": "the same of one whose blocks are in memory",
    "ttft_ms_restart": "the same of one whose blocks are on disk, after a restart",
    "ttft_ratio_restart_over_warm": "the median after a restart over that of warm ones",
    "ttft_ratio_cold_over_restart": "the median of cold ones over that after a restart",
}
KINDS: Final = ("cold", "warm", "restart")
_KEPT_SECONDS: Final = 0.2
_SAVING_SECONDS: Final = 60.0
_TURN_TOKENS: Final = 9
_PLAIN: Final = CachePolicy()
_LEASE: Final = CachePolicy(lease_s=3600.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, "threads")
    parser.add_argument("--tokens", type=int, default=2048, help="of a conversation")
    parser.add_argument("--conversations", type=int, default=3, help="of each kind, a restart")
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--kv-memory-mib", type=int, default=1024)
    parser.add_argument("--kv-dtype", default="auto", choices=["auto", "int8", "fp8"])


def run(options: argparse.Namespace) -> Result:
    """Kill and start the engine a few times."""
    with tempfile.TemporaryDirectory(prefix="partywall-bench-") as folder:
        config = engine_config(
            options,
            kv_memory_bytes=options.kv_memory_mib << 20,
            kv_dtype=options.kv_dtype,
            speculation="lookup",
            kept_dir=str(Path(folder, "kept")),
            kept_bytes=1 << 40,
            kept_seconds=_KEPT_SECONDS,
        )
        bed = _Bed(config, options.tokens)
        times = asyncio.run(bed.measure(options.restarts, options.conversations))
    middle = {kind: median(times[kind]) for kind in KINDS}
    table = Table("", "median ms", "least", "most", title="time to the first token")
    for kind in KINDS:
        shown = middle[kind], min(times[kind]), max(times[kind])
        table.add_row(kind, *(f"{1000 * value:.1f}" for value in shown))
    figures = {f"ttft_ms_{kind}": 1000 * middle[kind] for kind in KINDS}
    figures["ttft_ratio_restart_over_warm"] = middle["restart"] / middle["warm"]
    figures["ttft_ratio_cold_over_restart"] = middle["cold"] / middle["restart"]
    return Result(figures, [table])


class _Bed:
    """An engine, and conversations with it."""

    def __init__(self, config: EngineConfig, num_tokens: int) -> None:
        self._engine = ProcessEngine(config)
        self._num_tokens = num_tokens // config.block_size * config.block_size
        self._draw = random.Random(0)
        self._num_requests = 0

    async def measure(self, restarts: int, conversations: int) -> dict[str, list[float]]:
        """Times to the first token, in seconds, by kind."""
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        await self._engine.start()
        try:
            starts = await self._engine.wait_started(0)
            for _ in range(restarts):
                leased = [self._tokens() for _ in range(conversations)]
                await self._first_token(self._tokens(16))  # whose first step takes longer
                for prompt in leased:
                    times["cold"].append(await self._first_token(self._tokens()))
                    await self._lease(prompt)
                    times["warm"].append(await self._first_token(prompt, self._num_tokens))
                await self._saved()
                assert self._engine.pid is not None
                os.kill(self._engine.pid, signal.SIGKILL)
                starts = await self._engine.wait_started(starts)
                await self._first_token(self._tokens(16))
                for prompt in leased:
                    times["restart"].append(await self._first_token(prompt, self._num_tokens))
        finally:
            await self._engine.close()
        return times

    async def _first_token(self, prompt: list[int], expected: int = 0) -> float:
        """Of a conversation's next turn, of whose tokens so many are to be found."""
        request = self._request([*prompt, *self._tokens(_TURN_TOKENS)], max_tokens=2)
        seconds: float | None = None
        start = perf_counter()
        async for delta in engines.deltas_of(self._engine, request):
            if seconds is None and delta.token_ids:
                seconds = perf_counter() - start
                if delta.cached_tokens != expected:
                    raise BenchError(f"{delta.cached_tokens} tokens were found, not {expected}")
        if seconds is None:
            raise BenchError("there was no first token")
        return seconds

    async def _lease(self, prompt: list[int]) -> None:
        async for _ in engines.deltas_of(self._engine, self._request(prompt, 1, _LEASE)):
            pass

    async def _saved(self) -> None:
        """Return once nothing more comes to the disk."""
        deadline, last = perf_counter() + _SAVING_SECONDS, -1
        while perf_counter() < deadline:
            kept = (await self._engine.stats()).kept_bytes
            if kept and kept == last:
                return
            last = kept
            await asyncio.sleep(5 * _KEPT_SECONDS)
        raise BenchError(f"blocks were not on disk after {_SAVING_SECONDS:.0f} s")

    def _request(
        self, prompt: list[int], max_tokens: int, cache: CachePolicy = _PLAIN
    ) -> EngineRequest:
        self._num_requests += 1
        return engines.request(f"bench-{self._num_requests}", prompt, max_tokens, cache=cache)

    def _tokens(self, count: int | None = None) -> list[int]:
        most = self._engine.info.vocab_size
        return [self._draw.randrange(most) for _ in range(count or self._num_tokens)]
