"""The whole service under load: T tenants, each with a system prompt, over real sockets.

Every tenant's requests share its registered system prompt, which is sent inline (so that any
OpenAI-compatible server gets the same load); questions never repeat. The engine's step is not
measured here, but what a client sees of it: TTFT is the time from sending a request to the first
text of its answer, ITL the time between two arrivals of text.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from rich.table import Table

from bench.common.drivers import Driver, HttpDriver, WebSocketDriver
from bench.common.machine import warn_if_busy
from bench.common.rounds import (
    LOAD_FIGURES,
    Tenants,
    add_load_arguments,
    registered,
    round_of_asks,
    send_round,
    summary,
    system_prompts,
    token_counter,
    warm_up,
)
from bench.common.service import Service, running_service, served_model
from bench.common.workload import CountTokens
from bench.registry import Result, parameters
from engine.model.weights import DEFAULT_MODEL

_BASE: Final = LOAD_FIGURES | {
    "peak_kv_blocks": "most KV blocks in use at once",
    "ready_s": "from starting the service to its ready file, seconds",
    "rss_mib": "resident memory of all processes of the service after the load, MiB",
}
_SPEEDUP: Final = "ttft_p50_off_over_on"
FIGURES: Final = (
    _BASE
    | {
        f"{name}_{mode}": f"with --compare-cache, prefix cache {mode}: {meaning}"
        for mode in ("on", "off")
        for name, meaning in _BASE.items()
    }
    | {_SPEEDUP: "with --compare-cache: ttft_ms_p50_off / ttft_ms_p50_on"}
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_load_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; figures are their medians")
    parser.add_argument("--transport", choices=("http", "websocket"), default="http")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model served, and its tokenizer")
    parser.add_argument("--dtype", default="auto", help="type of weights and KV cache")
    parser.add_argument("--kv-memory", default="auto", help="memory of the KV cache")
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--no-prefix-cache", action="store_true", help="serve without prefix cache")
    cache.add_argument(
        "--compare-cache", action="store_true", help="two services, with and without prefix cache"
    )
    cache.add_argument("--url", help="drive this OpenAI-compatible server instead of starting one")
    parser.add_argument("--api-key", default="none", help="API key for --url")
    parser.add_argument("--served-model", help="model name for --url, where it is not --model")


def run(options: argparse.Namespace) -> Result:
    """Start what is to be measured, load it in rounds, and sum up."""
    foreign = warn_if_busy()
    count = token_counter(options.model)
    with ExitStack() as stack:
        sides = _sides(options, stack, count)
        asyncio.run(_measure(sides, options))
    reported = parameters(options, foreign_load_percent=foreign)
    return Result(reported, _figures(sides), [_table(sides)])


@dataclass
class _Side:
    """One service under load, and what was seen of it."""

    name: str
    url: str
    model: str
    tenants: Tenants
    service: Service | None
    rounds: list[dict[str, float]] = field(default_factory=list)
    peak_kv_blocks: float | None = None
    rss_mib: float = 0.0

    def figures(self) -> dict[str, float]:
        """Medians over the rounds (`errors`: the sum), and the service's own figures."""
        result = {
            name: statistics.median(round_[name] for round_ in self.rounds)
            for name in self.rounds[0]
            if name != "errors"
        }
        result["errors"] = sum(round_["errors"] for round_ in self.rounds)
        if self.peak_kv_blocks is not None:
            result["peak_kv_blocks"] = self.peak_kv_blocks
        if self.service is not None:
            result["ready_s"] = self.service.ready_seconds
            result["rss_mib"] = self.rss_mib
        return result


def _sides(options: argparse.Namespace, stack: ExitStack, count: CountTokens) -> list[_Side]:
    systems = system_prompts(options, count)
    if options.url is not None:
        url = options.url.rstrip("/").removesuffix("/v1")
        tenants = [(options.api_key, system) for system in systems]
        return [_Side("", url, options.served_model or options.model, tenants, None)]
    common = ["--model", options.model, "--dtype", options.dtype, "--kv-memory", options.kv_memory]
    on, off = ["--prefix-cache"], ["--no-prefix-cache"]
    wanted = {"": off if options.no_prefix_cache else on}
    if options.compare_cache:
        wanted = {"on": on, "off": off}
    sides = []
    for name, flags in wanted.items():
        service = stack.enter_context(running_service([*common, *flags]))
        tenants = registered(service, systems)
        model = served_model(service.url, tenants[0][0])
        sides.append(_Side(name, service.url, model, tenants, service))
    return sides


async def _measure(sides: Sequence[_Side], options: argparse.Namespace) -> None:
    """Rounds in turn over all sides, so that whatever changes on the machine meets them alike."""
    make = HttpDriver if options.transport == "http" else WebSocketDriver
    drivers: list[Driver] = [make(side.url, side.model) for side in sides]
    try:
        for side, driver in zip(sides, drivers, strict=True):
            await warm_up(driver, side.tenants, options)
        for number in range(options.rounds):
            for side, driver in zip(sides, drivers, strict=True):
                asks = round_of_asks(side.tenants, options, f"round {number}")
                side.rounds.append(summary(*await send_round(driver, asks, options)))
        for side in sides:
            if side.service is not None:
                # Other servers have no such figure.
                side.peak_kv_blocks = side.service.metrics()["partywall_kv_blocks_peak_in_use"]
                side.rss_mib = side.service.rss_mib()
    finally:
        for driver in drivers:
            await driver.close()


def _figures(sides: Sequence[_Side]) -> dict[str, float]:
    figures = {
        f"{name}_{side.name}" if side.name else name: value
        for side in sides
        for name, value in side.figures().items()
    }
    if len(sides) == 2:
        figures[_SPEEDUP] = figures["ttft_ms_p50_off"] / figures["ttft_ms_p50_on"]
    return figures


def _table(sides: Sequence[_Side]) -> Table:
    columns = [f"prefix cache {side.name}" if side.name else "value" for side in sides]
    table = Table("figure", *columns, title="serve", title_justify="left")
    found = [side.figures() for side in sides]
    for name in _BASE:
        table.add_row(name, *(_shown(figures.get(name)) for figures in found))
    if len(sides) == 2:
        ratio = _figures(sides)[_SPEEDUP]
        table.add_row(_SPEEDUP, f"{ratio:.2f}", "")
    return table


def _shown(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.2f}"
