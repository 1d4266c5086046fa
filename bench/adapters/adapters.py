"""What adapters cost: streams of many at once, the first token behind one that is not loaded, and
one that is activated behind a cached conversation.

`throughput` has as many streams decode with the base, and with 1, 8 and 32 adapters among them,
in turns; a ratio is the median over the rounds. `loading` times the first token behind an adapter
that the engine has never had, one that is in the host's memory, and one that is among the blocks.
`activated` times it behind a conversation that the base has computed: a few tokens more with the
base, with an adapter that they invoke, and with one that acts on all. `zipf` asks for adapters by
how popular they are, in a memory that holds few of them. `flood` is what a tenant's many adapters
cost its neighbours (`bench.adapters.flood`). With `--peers` other servers have the same adapters
(`bench.adapters.peers`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from itertools import count
from statistics import median
from time import perf_counter
from typing import Final

from rich.table import Table

from bench.adapters import flood, peers
from bench.adapters.making import Made, Shelf
from bench.common import engines
from bench.common.options import add_model, engine_config
from bench.registry import BenchError, Result
from engine.api import AdapterUse, EngineRequest
from engine.assembly.process import ProcessEngine

MIXES: Final = (1, 8, 32)
PARTS: Final = ("throughput", "loading", "activated", "zipf", "flood", "peers")
FIGURES: Final = {
    **{
        f"throughput_ratio_{mix}": f"tokens a second of streams with {mix} adapters over the base's"
        for mix in MIXES
    },
    "tokens_per_s_base": "of all streams, with the base, median",
    "ttft_ms_new": "first token behind an adapter that the engine has never had, ms, median",
    "ttft_ms_host": "behind one in the host's memory",
    "ttft_ms_loaded": "behind one among the blocks",
    "ttft_ms_no_adapter": "behind none",
    "activated_ttft_over_lora": "behind a cached conversation, activated over plain LoRA",
    "activated_ttft_over_base": "the same over the base's own next turn",
    "zipf_found_loaded": "share of requests whose adapter was among the blocks or in the host's "
    "memory",
    "zipf_ttft_ms_median": "their first tokens, ms",
    "zipf_ttft_ms_p99": "of the slowest hundredth, ms",
    **flood.FIGURES,
    **peers.FIGURES,
}
_INVOCATION: Final = (5, 6, 7)
_PROMPT_TOKENS: Final = 64
_JUDGE_TOKENS: Final = 24
_ZIPF: Final = 1.0
_SMALL: Final = 8
"""Such a part of the memory is small."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, "dtype", "quantize", "threads")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rank", type=int, default=16, help="on all linear layers")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--output", type=int, default=64, help="tokens of a stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--conversation", type=int, default=4096, help="tokens of a cached one")
    parser.add_argument("--adapters", type=int, default=1000, help="of which zipf asks for some")
    parser.add_argument("--held", type=int, default=50, help="of them that the memory holds")
    parser.add_argument("--kv-memory-mib", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=300, help="of zipf")
    flood.add_arguments(parser)
    peers.add_arguments(parser)


def run(options: argparse.Namespace) -> Result:
    """Measure what is asked for. Raises `BenchError` where a server does not answer."""
    if options.parts == ["peers"] and options.peers is None:
        raise BenchError("--parts peers: there are none without --peers")
    figures = asyncio.run(_measure(options))
    if "flood" in options.parts:
        figures |= flood.measure(options)
    table = Table("", "", title="adapters")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}" if value < 100 else f"{value:.0f}")
    tables = [table] if figures else []
    if "peers" in options.parts and options.peers is not None:
        beside, servers = peers.measure(options)
        figures |= beside
        tables.append(servers)
    return Result(figures, tables)


async def _measure(options: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    whole = options.kv_memory_mib << 20
    if "throughput" in options.parts:
        async with _Bed(options, whole) as bed:
            figures |= await bed.throughput()
    if "activated" in options.parts:
        async with _Bed(options, whole) as bed:
            figures |= await bed.activated()
    if "loading" in options.parts:  # in a memory that is filled soon
        async with _Bed(options, whole // _SMALL) as bed:
            figures |= await bed.loading()
    if "zipf" in options.parts:
        figures |= await _zipf(options, whole // _SMALL)
    return figures


class _Bed:
    """An engine in a process of its own, and adapters for it."""

    def __init__(
        self, options: argparse.Namespace, kv_memory: int, host_bytes: int = 1 << 30
    ) -> None:
        self._options = options
        self._shelf = Shelf()
        self._numbers = count(1)
        self._random = random.Random(0)
        config = engine_config(
            options,
            kv_memory_bytes=kv_memory,
            adapter_memory_bytes=host_bytes,
            max_running_requests=max(64, options.streams),
        )
        self.engine = ProcessEngine(config)
        self.engine.source = self._shelf.bring

    async def __aenter__(self) -> _Bed:
        await self.engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()

    @property
    def num_brought(self) -> int:
        """Adapters that the engine was brought."""
        return self._shelf.num_brought

    def make(self, invocation: tuple[int, ...] = ()) -> Made:
        """Another adapter."""
        shapes, rank = self.engine.info.linears.items(), self._options.rank
        linears = {name: (shape[0], shape[1]) for name, shape in shapes if len(shape) == 2}
        return self._shelf.add(Made(next(self._numbers), linears, rank, invocation))

    def request(self, prompt: list[int], output: int, use: AdapterUse | None) -> EngineRequest:
        """With as many tokens as it may have."""
        name = f"r{next(self._numbers)}"
        return engines.request(name, prompt, output, min_tokens=output, adapter=use)

    def prompt(self, tokens: int) -> list[int]:
        """A new one."""
        size = min(20_000, self.engine.info.vocab_size)
        return [self._random.randrange(100, size) for _ in range(tokens)]

    async def first_token(self, prompt: list[int], use: AdapterUse | None) -> float:
        """Seconds until it is there."""
        started = perf_counter()
        seconds = 0.0
        async for delta in engines.deltas_of(self.engine, self.request(prompt, 1, use)):
            seconds = seconds or (perf_counter() - started if delta.token_ids else 0.0)
        return seconds

    async def throughput(self) -> dict[str, float]:
        """Streams of the base, and of adapters, in turns."""
        options = self._options
        adapters = [self.make() for _ in range(max(MIXES))]
        for one in adapters:
            await self.first_token(self.prompt(8), one.use())
        taken: dict[int, list[float]] = {mix: [] for mix in (0, *MIXES)}
        for _ in range(options.rounds + 1):
            for mix, seconds in taken.items():
                chosen = [adapters[n % mix].use() if mix else None for n in range(options.streams)]
                seconds.append(await self._streams(chosen))
        base = taken.pop(0)[1:]
        tokens = options.streams * options.output
        found = {"tokens_per_s_base": tokens / median(base)}
        for mix, seconds in taken.items():
            ratios = [one / other for one, other in zip(base, seconds[1:], strict=True)]
            found[f"throughput_ratio_{mix}"] = median(ratios)
        return found

    async def _streams(self, chosen: Sequence[AdapterUse | None]) -> float:
        """Seconds from the first token of the last stream that has one to the end of all."""
        waiting = len(chosen)
        all_run = asyncio.Event()
        started = perf_counter()

        async def stream(use: AdapterUse | None) -> None:
            nonlocal waiting, started
            request = self.request(self.prompt(_PROMPT_TOKENS), self._options.output, use)
            is_first = True
            async for delta in engines.deltas_of(self.engine, request):
                if is_first and delta.token_ids:
                    is_first, waiting = False, waiting - 1
                    if not waiting:
                        started = perf_counter()
                        all_run.set()

        await asyncio.gather(*map(stream, chosen))
        return perf_counter() - started

    async def loading(self) -> dict[str, float]:
        """One after the other."""
        times: dict[str, list[float]] = {"no_adapter": [], "new": [], "loaded": [], "host": []}
        for _ in range(self._options.rounds):
            one = self.make()
            assert one.weights, "they are made before they are asked for"
            times["no_adapter"].append(await self.first_token(self.prompt(_PROMPT_TOKENS), None))
            for kind in ("new", "loaded"):
                times[kind].append(await self.first_token(self.prompt(_PROMPT_TOKENS), one.use()))
            await self._fill()
            times["host"].append(await self.first_token(self.prompt(_PROMPT_TOKENS), one.use()))
        return {f"ttft_ms_{kind}": 1000 * median(seconds) for kind, seconds in times.items()}

    async def _fill(self) -> None:
        """Have all memory taken by something else."""
        info = self.engine.info
        length = min(info.max_context_tokens, 2048) - 2
        for _ in range(2 * info.num_blocks * info.block_size // length):
            await self.first_token(self.prompt(length), None)

    async def activated(self) -> dict[str, float]:
        """A judge behind conversations that the base has computed."""
        tokens = min(self._options.conversation, self.engine.info.max_context_tokens - 64)
        times: dict[str, list[float]] = {"base": [], "activated": [], "lora": []}
        adapters = {"activated": self.make(_INVOCATION), "lora": self.make()}
        for one in adapters.values():
            await self.first_token([*self.prompt(8), *_INVOCATION], one.use())
        for _ in range(self._options.rounds):
            for kind, seconds in times.items():
                said = self.prompt(tokens)
                await self.first_token(said, None)
                judge = [*_INVOCATION, *self.prompt(_JUDGE_TOKENS - len(_INVOCATION))]
                use = adapters[kind].use(tokens * (kind == "activated")) if kind != "base" else None
                seconds.append(await self.first_token([*said, *judge], use))
        middle = {kind: median(seconds) for kind, seconds in times.items()}
        return {
            "activated_ttft_over_lora": middle["activated"] / middle["lora"],
            "activated_ttft_over_base": middle["activated"] / middle["base"],
        }


async def _zipf(options: argparse.Namespace, kv_memory: int) -> dict[str, float]:
    """Some requests at a time for adapters of which few are asked for often."""
    async with _Bed(options, kv_memory) as probe:
        numbers = sum(map(sum, probe.make().linears.values()))
        size = options.rank * numbers * (4 if probe.engine.info.dtype == "float32" else 2)
    async with _Bed(options, kv_memory, max(0, options.held * size - kv_memory)) as bed:
        adapters = [bed.make() for _ in range(options.adapters)]
        weights = [1 / (place + 1) ** _ZIPF for place in range(len(adapters))]
        chosen = random.Random(1).choices(adapters, weights, k=options.requests)
        for one in set(chosen):
            assert one.weights, "they are made before they are asked for"
        slots = asyncio.Semaphore(4)

        async def ask(one: Made) -> float:
            async with slots:
                return await bed.first_token(bed.prompt(_PROMPT_TOKENS), one.use())

        seconds = sorted(await asyncio.gather(*map(ask, chosen)))
        found = 1 - bed.num_brought / len(chosen)
    return {
        "zipf_found_loaded": found,
        "zipf_ttft_ms_median": 1000 * median(seconds),
        "zipf_ttft_ms_p99": 1000 * seconds[int(0.99 * (len(seconds) - 1))],
    }
