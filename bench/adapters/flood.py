"""What a tenant's many adapters cost its neighbours, over a service and its store.

A tenant asks for one adapter after another, so many at a time, each of them one that the machine
does not hold any more. Two neighbours ask meanwhile, one the base and one an adapter of its own,
and are compared with themselves where nobody else asks, and where as many requests come for the
base. Then one request at a time begins behind an adapter that has to be loaded, or behind one that
is there, while a neighbour's stream runs: its pauses are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle, pairwise
from statistics import median
from time import perf_counter
from typing import Final

from bench.adapters.making import Made, linears_of
from bench.common.drivers import Ask, HttpDriver, Timing
from bench.common.figures import median_ratio, percentile
from bench.common.options import service_flags
from bench.common.service import Service, running_service, served_model
from bench.common.workload import passage
from bench.registry import BenchError
from bench.service.loads.rounds import Target, answer

FIGURES: Final = {
    "flood_ttft_ratio": "neighbours' first tokens beside a flood of a tenant's many adapters, over "
    "those where nobody else asks, median",
    "flood_ttft_over_base_flood": "the same over those beside as many requests for the base",
    "flood_ttft_ms_alone": "first tokens where nobody else asks, ms, median",
    "flood_ttft_ms_base": "beside requests for the base",
    "flood_ttft_ms_adapters": "beside requests for many adapters",
    "flood_ttft_ratio_own": "`flood_ttft_ratio` of the neighbour with an adapter of its own alone",
    "flood_requests_per_s_base": "of the flood that asks for the base",
    "flood_requests_per_s_adapters": "of the flood of adapters",
    "loading_gap_ms": "longest pause of a neighbour's stream while a request begins behind an "
    "adapter that is loaded for it, less that beside one whose adapter is there, ms, medians",
    "loading_gap_ms_p90": "the same, of nine in ten",
    "gap_ms_there": "that longest pause beside a request whose adapter is there, ms, median",
}
_ALONE: Final = "alone"
_FLOODS: Final = (_ALONE, "base", "adapters")
_FLOOD: Final = "flood"
_BASE, _OWN = _NEIGHBOURS = ("neighbour", "owner")
_HELD: Final = 0.4
"""Of the flood's adapters so many find room: none of them is still there when its turn comes."""
_WORDS: Final = 48
_FEW_WORDS: Final = 4
_OUTPUT: Final = 8
_AHEAD_SECONDS: Final = 0.5
"""For a flood to be one."""
_APART_SECONDS: Final = 0.02
_STREAM_TOKENS: Final = 512
_TIMEOUT_SECONDS: Final = 60.0
_LEAST_MEMORY: Final = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the flood."""
    parser.add_argument("--flooding", type=int, default=8, help="requests of the flood at a time")
    parser.add_argument("--flood-adapters", type=int, default=48, help="that it asks for in turn")
    parser.add_argument("--probes", type=int, default=24, help="of neighbours, a flood and round")


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Flood a service. Raises `BenchError` where it does not answer."""
    linears = linears_of(options.model)
    size = 2 * options.rank * sum(map(sum, linears.values()))
    held = max(_LEAST_MEMORY, int(_HELD * options.flood_adapters * size))
    flags = [*service_flags(options), "--kv-memory", str(held), "--adapter-memory", str(size)]
    flags += ["--speculation", "off"]  # a token a step: pauses are those of steps
    with running_service(flags) as service:
        keys = {name: service.create_tenant(name) for name in (_FLOOD, *_NEIGHBOURS)}
        for number in range(options.flood_adapters + 2):
            made = Made(number, linears, options.rank)
            tenant = _OWN if number == 0 else _FLOOD
            service.put_adapter(tenant, f"a{number}", made.config, made.weights)
        return asyncio.run(_measure(service, keys, options))


async def _measure(
    service: Service, keys: Mapping[str, str], options: argparse.Namespace
) -> dict[str, float]:
    model = served_model(service.url, keys[_BASE])
    driver = HttpDriver(service.url, model, adapter=f'{{"model": "{model}:a{{number}}"}}')
    bench = _Bench(Target(driver, list(keys.items()), _TIMEOUT_SECONDS), keys, options)
    try:
        return await bench.floods() | await bench.pauses()
    finally:
        await driver.close()


@dataclass
class _Bench:
    target: Target
    keys: Mapping[str, str]
    options: argparse.Namespace
    numbers: Iterator[int] = field(default_factory=count)
    """No text has two of one."""
    answered: int = 0

    def __post_init__(self) -> None:
        self.turns = cycle(range(2, self.options.flood_adapters + 2))

    async def ask(self, tenant: str, adapter: int | None, words: int, output: int) -> Timing:
        """One request with a new text. Raises `BenchError` where it fails."""
        ask = Ask(
            api_key=self.keys[tenant],
            system="",
            question=passage(f"flood {next(self.numbers)}", words),
            output_tokens=output,
            adapter=adapter,
        )
        timing = await answer(self.target, ask)
        if timing.error is not None:
            raise BenchError(f"a request of {tenant} failed: {timing.error}")
        return timing

    async def probe(self, tenant: str) -> float:
        """Seconds to the first token of a neighbour's."""
        own = 0 if tenant == _OWN else None
        return (await self.ask(tenant, own, _WORDS, _OUTPUT)).ttft_seconds

    async def flood(self, kind: str) -> None:
        """One request behind the other, until it is cancelled."""
        while True:
            adapter = next(self.turns) if kind == "adapters" else None
            await self.ask(_FLOOD, adapter, _FEW_WORDS, _OUTPUT)
            self.answered += 1

    async def floods(self) -> dict[str, float]:
        """All kinds of floods in turns."""
        found: dict[tuple[str, str], list[float]] = {}
        rates: dict[str, list[float]] = {kind: [] for kind in _FLOODS}
        for number in range(self.options.rounds + 1):
            for kind in _FLOODS:
                seconds, rate = await self.beside(kind)
                if number:  # the first warms up
                    rates[kind].append(rate)
                    for tenant, middle in seconds.items():
                        found.setdefault((kind, tenant), []).append(middle)
        both = {
            kind: [
                (one + other) / 2
                for one, other in zip(found[kind, _BASE], found[kind, _OWN], strict=True)
            ]
            for kind in _FLOODS
        }
        alone = both[_ALONE]
        return {
            "flood_ttft_ratio": median_ratio(both["adapters"], alone),
            "flood_ttft_over_base_flood": median_ratio(both["adapters"], both["base"]),
            **{f"flood_ttft_ms_{kind}": 1000 * median(both[kind]) for kind in _FLOODS},
            "flood_ttft_ratio_own": median_ratio(found["adapters", _OWN], found[_ALONE, _OWN]),
            **{f"flood_requests_per_s_{kind}": median(rates[kind]) for kind in _FLOODS[1:]},
        }

    async def beside(self, kind: str) -> tuple[dict[str, float], float]:
        """Of neighbours, the median; and how many of the flood's are answered a second."""
        senders = self.options.flooding if kind != _ALONE else 0
        floods = [asyncio.create_task(self.flood(kind)) for _ in range(senders)]
        try:
            await asyncio.sleep(_AHEAD_SECONDS)
            started, before = perf_counter(), self.answered
            seconds: dict[str, list[float]] = {tenant: [] for tenant in _NEIGHBOURS}
            for _ in range(self.options.probes):
                for tenant, times in seconds.items():
                    times.append(await self.probe(tenant))
                    await asyncio.sleep(_APART_SECONDS * random.random())
            rate = (self.answered - before) / (perf_counter() - started)
        finally:
            for task in floods:
                task.cancel()
            ends = await asyncio.gather(*floods, return_exceptions=True)
        for end in ends:
            if isinstance(end, BenchError):
                raise end
        return {tenant: median(times) for tenant, times in seconds.items()}, rate

    async def pauses(self) -> dict[str, float]:
        """Beside requests that wait for their adapters, and beside others, in any order."""
        kinds = ["there", "loaded"] * (self.options.probes * self.options.rounds // 2)
        random.Random(0).shuffle(kinds)
        gaps: dict[str, list[float]] = {"there": [], "loaded": []}
        stream = _Stream(self)
        for kind in kinds:
            await stream.goes_on()
            await self.ask(_FLOOD, 1, _FEW_WORDS, 1)  # it is there
            await stream.goes_on()
            adapter = 1 if kind == "there" else next(self.turns)
            timing = await self.ask(_FLOOD, adapter, _FEW_WORDS, 1)
            gaps[kind].append(await stream.longest(timing.sent_at, timing.arrivals[0]))
        await stream.stop()
        of = {kind: partial(percentile, found) for kind, found in gaps.items()}
        return {
            "loading_gap_ms": 1000 * (of["loaded"](50) - of["there"](50)),
            "loading_gap_ms_p90": 1000 * (of["loaded"](90) - of["there"](90)),
            "gap_ms_there": 1000 * of["there"](50),
        }


class _Stream:
    """A neighbour's answers of the base, one behind the other."""

    def __init__(self, bench: _Bench) -> None:
        self._bench = bench
        self._timing = Timing()
        self._task: asyncio.Task[None] | None = None

    async def goes_on(self) -> None:
        """Until a few more tokens have come, with many left."""
        if len(self._timing.arrivals) > _STREAM_TOKENS // 2 or self._task is None:
            await self.stop()
            self._timing = Timing()
            ask = Ask(
                api_key=self._bench.keys[_BASE],
                system="",
                question=passage(f"stream {next(self._bench.numbers)}", _FEW_WORDS),
                output_tokens=_STREAM_TOKENS,
            )
            driver = self._bench.target.driver
            self._task = asyncio.create_task(driver.ask(ask, self._timing))
        wanted = len(self._timing.arrivals) + 3
        await self._until(lambda arrivals: len(arrivals) >= wanted)

    async def longest(self, start: float, end: float) -> float:
        """Of its pauses that were not over at one time, and had begun at another."""
        await self._until(lambda arrivals: arrivals[-1] > end)
        return max(
            after - before
            for before, after in pairwise(self._timing.arrivals)
            if after > start and before < end
        )

    async def _until(self, enough: Callable[[list[float]], bool]) -> None:
        while not enough(self._timing.arrivals):
            if self._task is None or self._task.done():
                raise BenchError("a stream ended too soon")
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Break it off."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
