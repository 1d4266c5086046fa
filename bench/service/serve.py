"""The whole service under load, over real sockets: T tenants, several requests at once.

`--load` says what is asked (`bench/service/loads/`), the same as in `peers`. The engine's step is
not measured here, but what a client sees of it: TTFT is the time from sending a request to the
first text of its answer, ITL the time between two arrivals of text.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from rich.table import Table

from bench.common.drivers import DRIVERS
from bench.common.options import add_model, service_flags
from bench.common.service import Service, running_service, served_model
from bench.registry import Result
from bench.service.loads import FIGURES as LOAD_FIGURES
from bench.service.loads import Load, add_load_arguments, count, make_load, settle, token_counter
from bench.service.loads.rounds import Target, Tenants, over_rounds, registered, warm_up

_OWN: Final = {
    "peak_kv_blocks": "most KV blocks in use at once",
    "ready_s": "from starting the service to its ready file, seconds",
    "rss_mib": "resident memory of all processes of the service after the load, MiB",
}
_BASE: Final = LOAD_FIGURES | _OWN
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
    parser.add_argument("--rounds", type=count, default=3, help="rounds; figures are their medians")
    parser.add_argument("--transport", choices=tuple(DRIVERS), default="http")
    add_model(parser, "dtype", "kv_memory")
    parser.set_defaults(kv_memory="auto")
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
    settle(options)
    load = make_load(options, token_counter(options.model))
    with ExitStack() as stack:
        sides = _sides(options, stack, load)
        asyncio.run(_measure(sides, load, options))
    figures = _figures(sides)
    return Result(figures, [_table(sides, figures)] if len(sides) == 2 else [])


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
        result = over_rounds(self.rounds)
        if self.peak_kv_blocks is not None:
            result["peak_kv_blocks"] = self.peak_kv_blocks
        if self.service is not None:
            result["ready_s"] = self.service.ready_seconds
            result["rss_mib"] = self.rss_mib
        return result


def _sides(options: argparse.Namespace, stack: ExitStack, load: Load) -> list[_Side]:
    if options.url is not None:
        url = options.url.rstrip("/").removesuffix("/v1")
        tenants = [(options.api_key, system) for system in load.systems]
        return [_Side("", url, options.served_model or options.model, tenants, None)]
    on, off = ["--prefix-cache"], ["--no-prefix-cache"]
    wanted = {"": off if options.no_prefix_cache else on}
    if options.compare_cache:
        wanted = {"on": on, "off": off}
    sides = []
    for name, flags in wanted.items():
        service = stack.enter_context(running_service([*service_flags(options), *flags]))
        tenants = registered(service, load.systems)
        model = served_model(service.url, tenants[0][0])
        sides.append(_Side(name, service.url, model, tenants, service))
    return sides


async def _measure(sides: Sequence[_Side], load: Load, options: argparse.Namespace) -> None:
    """Rounds in turn over all sides, so that whatever changes on the machine meets them alike."""
    make = DRIVERS[options.transport]
    targets = [
        Target(make(side.url, side.model), side.tenants, options.timeout_seconds) for side in sides
    ]
    try:
        for target in targets:
            await warm_up(target)
        for number in range(options.rounds):
            for side, target in zip(sides, targets, strict=True):
                side.rounds.append(await load.measure(target, f"round {number}"))
        for side in sides:
            if side.service is not None:
                # Other servers have no such figure.
                side.peak_kv_blocks = side.service.metrics()["partywall_kv_blocks_peak_in_use"]
                side.rss_mib = side.service.rss_mib()
    finally:
        for target in targets:
            await target.driver.close()


def _figures(sides: Sequence[_Side]) -> dict[str, float]:
    figures = {
        f"{name}_{side.name}" if side.name else name: value
        for side in sides
        for name, value in side.figures().items()
    }
    if len(sides) == 2:
        figures[_SPEEDUP] = figures["ttft_ms_p50_off"] / figures["ttft_ms_p50_on"]
    return figures


def _table(sides: Sequence[_Side], figures: dict[str, float]) -> Table:
    """Both sides beside each other."""
    columns = [f"prefix cache {side.name}" for side in sides]
    table = Table("figure", *columns, title="serve", title_justify="left")
    for name in [*sides[0].rounds[0], *_OWN]:
        table.add_row(name, *(f"{figures[f'{name}_{side.name}']:,.2f}" for side in sides))
    table.add_row(_SPEEDUP, f"{figures[_SPEEDUP]:.2f}", "")
    return table
