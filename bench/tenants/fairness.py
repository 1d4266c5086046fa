"""What a flood of one tenant does to its neighbours: first come first served, and fair shares.

One tenant sends ten times its share of what the engine can serve; three others stay below theirs at
every moment, since the requests of each come evenly, if not regularly. Two services take the same
load in turn, one with `--fairness vtc` (virtual token counters, Sheng et al., OSDI 2024), one with
`fcfs`; "alone" is the same three tenants' load without the flood. Then two tenants send more than
can be served, one long prompts, one long outputs and more of them: the paper bounds by how much the
service to one may exceed that to the other, over every interval in which both have requests
waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import httpx
from rich import box
from rich.table import Table

from bench.common.drivers import Ask, DriverError, HttpDriver
from bench.common.figures import median_ratio, percentile
from bench.common.load import Arrival, Phase, evenly, most_per_s, poisson, send_as_due
from bench.common.options import add_model, service_flags
from bench.common.service import Service, running_service, served_model
from bench.common.workload import passage
from bench.registry import BenchError, Result
from engine.config import EngineConfig

FIGURES: Final = {
    "ttft_ms_p99_alone": "the three tenants' time to the first text without the flood, 99th "
    "percentile, ms",
    "ttft_ms_p99_vtc": "the same beside the flood, with virtual token counters",
    "ttft_ms_p99_fcfs": "the same beside the flood, first come first served; requests that were "
    "not answered in time count with how long they had waited, so it grows with --seconds",
    "ttft_p99_vtc_over_alone": "ttft_ms_p99_vtc / ttft_ms_p99_alone, median of the rounds",
    "itl_ms_p50_alone": "the three tenants' time between two texts without the flood, median, ms",
    "itl_ms_p50_vtc": "the same beside the flood, with virtual token counters",
    "itl_ms_p50_fcfs": "the same beside the flood, first come first served",
    "itl_p50_vtc_over_alone": "itl_ms_p50_vtc / itl_ms_p50_alone, median of the rounds",
    "throughput_ratio_vtc_over_fcfs": "tokens served a second to all tenants, beside the flood",
    "max_service_gap_over_bound": "greatest difference in service to two backlogged tenants, over "
    "2 max(w_in L_in, w_out M): at most 1 with virtual token counters; L_in is the longest prompt, "
    "M the most tokens that the engine was seen to hold",
    "max_service_gap_over_bound_fcfs": "the same, first come first served",
    "errors": "requests that failed",
}
_BEHAVED: Final = ("tenant-1", "tenant-2", "tenant-3")
_FLOOD: Final = "flood"
_TENANTS: Final = (*_BEHAVED, _FLOOD)
_SYSTEM: Final = "Answer briefly."
_DEFAULTS: Final = EngineConfig(model_path="")
_CALIBRATION_SENDERS: Final = 16
_POLL_SECONDS: Final = 0.25
_FEWEST_SAMPLES: Final = 4
_UNSEEN: Final = {"queued": 0, "served": 0.0}
_RAMP_SECONDS: Final = 2.0
_LONG_PROMPT, _LONG_OUTPUT = "tenant-1", "tenant-2"
_BACKLOG: Final = 1.3
"""Requests sent for each that the engine is expected to serve, so that some always wait."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompt-words", type=int, default=190, help="words of a prompt")
    parser.add_argument("--output-tokens", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--flood", type=float, default=10.0, help="flood, in shares of one tenant")
    parser.add_argument("--load", type=float, default=0.7, help="each other's load, in shares")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all loads in turn")
    parser.add_argument("--seconds", type=float, default=40.0, help="of one load")
    parser.add_argument("--grace-seconds", type=float, default=10.0, help="for late answers")
    parser.add_argument("--backlog-seconds", type=float, default=15.0, help="of two tenants")
    parser.add_argument("--calibration-seconds", type=float, default=8.0, help="to find the share")
    parser.add_argument("--max-running-requests", default="auto", help="in the engine's batch")
    add_model(parser, "dtype", "kv_memory")
    parser.add_argument("--seed", type=int, default=0, help="of all arrivals")


def run(options: argparse.Namespace) -> Result:
    """Start both services, find the share, and load them in turn."""
    flags = [*service_flags(options), "--max-running-requests", options.max_running_requests]
    flags += ["--speculation", "off"]  # one arrival of text counts as one token
    with ExitStack() as stack:
        sides = [
            _Side.of(name, stack.enter_context(running_service([*flags, "--fairness", name])))
            for name in ("vtc", "fcfs")
        ]
        found = asyncio.run(_measure(sides, options))
    tables = [_table(found), _gap_table(found)]
    return Result(_figures(found), tables, {"share_requests_per_s": round(found.share_per_s, 3)})


@dataclass
class _Side:
    """A service with one policy, and its tenants' keys."""

    name: str
    service: Service
    keys: dict[str, str]
    model: str

    @classmethod
    def of(cls, name: str, service: Service) -> _Side:
        keys = {tenant: service.create_tenant(tenant) for tenant in _TENANTS}
        return cls(name, service, keys, served_model(service.url, keys[_FLOOD]))

    def ask(self, tenant: str, label: str, words: int, output_tokens: int) -> Ask:
        """A request that resembles no other."""
        return Ask(
            api_key=self.keys[tenant],
            system=_SYSTEM,
            question=passage(label, words),
            output_tokens=output_tokens,
        )


@dataclass
class _Load:
    """All rounds of one load on one service."""

    rounds: list[Phase] = field(default_factory=list)

    def ttfts(self, tenants: Collection[str]) -> list[float]:
        return [one for phase in self.rounds for one in phase.ttfts(tenants)]

    def gaps(self, tenants: Collection[str]) -> list[float]:
        return [one for phase in self.rounds for one in phase.gaps(tenants)]

    def latest_firsts(self) -> list[float]:
        """99th percentile of each round, in seconds."""
        return [percentile(phase.ttfts(_BEHAVED), 99) for phase in self.rounds]

    def usual_gaps(self) -> list[float]:
        """Median of each round, in seconds."""
        return [percentile(phase.gaps(_BEHAVED), 50) for phase in self.rounds]

    def answered(self, tenants: Collection[str]) -> int:
        return sum(
            one.answered and one.arrival.tenant in tenants
            for phase in self.rounds
            for one in phase.sent
        )

    def errors(self) -> int:
        return sum(one.timing.error is not None for phase in self.rounds for one in phase.sent)

    def tokens_per_s(self, tenants: Collection[str], seconds: float) -> list[float]:
        """Of each round, once the engine is busy."""
        first = min(_RAMP_SECONDS, seconds / 4)
        return [
            phase.served_tokens(tenants, first, seconds) / (seconds - first)
            for phase in self.rounds
        ]


@dataclass(frozen=True)
class _Backlog:
    """How service to two tenants diverged while both had requests waiting."""

    greatest_gap: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.greatest_gap / self.bound


@dataclass(frozen=True)
class _Sample:
    """What the engine said at one moment. `ahead`: how much more service one tenant has had."""

    both_wait: bool
    ahead: float
    tokens_held: int

    @classmethod
    def of(cls, live: dict[str, Any]) -> _Sample:
        tenants = {tenant["id"]: tenant for tenant in live["tenants"]}
        one, other = (tenants.get(name, _UNSEEN) for name in (_LONG_PROMPT, _LONG_OUTPUT))
        return cls(
            both_wait=bool(one["queued"] and other["queued"]),
            ahead=one["served"] - other["served"],
            tokens_held=live["engine"]["blocks_in_use"] * _DEFAULTS.block_size,
        )


@dataclass
class _Found:
    """Everything that was measured."""

    share_per_s: float
    seconds: float
    loads: dict[str, _Load] = field(
        default_factory=lambda: {name: _Load() for name in ("alone", "vtc", "fcfs")}
    )
    backlogs: dict[str, _Backlog] = field(default_factory=dict)


async def _measure(sides: Sequence[_Side], options: argparse.Namespace) -> _Found:
    drivers = {side.name: HttpDriver(side.service.url, side.model) for side in sides}
    by_name = {side.name: side for side in sides}
    try:
        capacity = statistics.mean(
            [await _capacity(side, drivers[side.name], options) for side in sides]
        )
        found = _Found(capacity / len(_TENANTS), options.seconds)
        for number in range(options.rounds):
            # "Alone" takes turns too, so that neither service is warmer when its load comes.
            quiet = sides[number % len(sides)].name
            for load, name in (("alone", quiet), ("vtc", "vtc"), ("fcfs", "fcfs")):
                found.loads[load].rounds.append(
                    await send_as_due(
                        drivers[name],
                        _arrivals(by_name[name], number, load, found.share_per_s, options),
                        seconds=options.seconds,
                        awaited=_BEHAVED,
                        grace_seconds=options.grace_seconds,
                    )
                )
                await asyncio.to_thread(by_name[name].service.wait_until_idle)
        for side in sides:
            found.backlogs[side.name] = await _backlog(side, drivers[side.name], capacity, options)
    except (DriverError, httpx.HTTPError) as error:
        raise BenchError(f"the load could not be sent: {error}") from error
    finally:
        for driver in drivers.values():
            await driver.close()
    return found


async def _capacity(side: _Side, driver: HttpDriver, options: argparse.Namespace) -> float:
    """Requests a second that one service can answer."""
    words, output_tokens = options.prompt_words, options.output_tokens
    found = await most_per_s(
        driver,
        lambda label: side.ask(_FLOOD, f"calibration {label}", words, output_tokens),
        senders=_CALIBRATION_SENDERS,
        seconds=options.calibration_seconds,
    )
    await asyncio.to_thread(side.service.wait_until_idle)
    return found


def _arrivals(
    side: _Side, number: int, load: str, share_per_s: float, options: argparse.Namespace
) -> list[Arrival]:
    """A round's requests: at the same times and of the same lengths for every load."""
    arrivals: list[Arrival] = []
    for tenant in _BEHAVED if load == "alone" else _TENANTS:
        draw = random.Random(f"{options.seed} {number} {tenant}")
        if tenant == _FLOOD:
            seconds = options.seconds + options.grace_seconds
            times = poisson(options.flood * share_per_s, seconds, draw)
        else:
            times = evenly(options.load * share_per_s, options.seconds, draw)
        for due in times:
            label = f"{load} {number} {tenant} {due}"
            ask = side.ask(tenant, label, options.prompt_words, options.output_tokens)
            arrivals.append(Arrival(due_seconds=due, tenant=tenant, ask=ask))
    return arrivals


async def _backlog(
    side: _Side, driver: HttpDriver, capacity: float, options: argparse.Namespace
) -> _Backlog:
    """Overload one service with two tenants' requests, and watch how much each is served."""
    seconds = options.backlog_seconds
    arrivals = _overload(side, capacity, options)
    loading = asyncio.create_task(
        send_as_due(driver, arrivals, seconds=seconds, awaited=(), grace_seconds=0.0)
    )
    samples: list[_Sample] = []
    async with side.service.operator() as operator:
        while not loading.done():
            live = (await operator.get("/admin/live")).raise_for_status().json()
            if live["engine"] is not None:  # it answered in time
                samples.append(_Sample.of(live))
            await asyncio.wait([loading], timeout=_POLL_SECONDS)
    phase = await loading
    await asyncio.to_thread(side.service.wait_until_idle)
    return _divergence(samples, phase)


def _overload(side: _Side, capacity: float, options: argparse.Namespace) -> list[Arrival]:
    """More than can be served of both, and of the second tenant's three times as much service.

    They are short, so that the engine holds few tokens and the bound is a tight one.
    """
    words, output_tokens = options.prompt_words, options.output_tokens
    output_price = _DEFAULTS.output_token_price
    served = capacity * options.backlog_seconds * (words + output_price * output_tokens)
    arrivals: list[Arrival] = []
    for tenant, words_each, tokens_each, times in (
        (_LONG_PROMPT, words // 4, max(1, output_tokens // 4), 1),
        (_LONG_OUTPUT, words // 16, output_tokens, 3),
    ):
        price = words_each + output_price * tokens_each
        count = math.ceil(times * _BACKLOG * served / 2 / price)
        for number in range(count):
            ask = side.ask(tenant, f"backlog {tenant} {number}", words_each, tokens_each)
            due = number / count * options.backlog_seconds / 2  # faster than any is served
            arrivals.append(Arrival(due_seconds=due, tenant=tenant, ask=ask))
    return arrivals


def _divergence(samples: Sequence[_Sample], phase: Phase) -> _Backlog:
    """The greatest gap over all intervals between two samples, while both tenants waited."""
    spells = [
        [sample.ahead for sample in spell]
        for both_wait, spell in groupby(samples, key=lambda sample: sample.both_wait)
        if both_wait
    ]
    if max(map(len, spells), default=0) < _FEWEST_SAMPLES:
        raise BenchError("the two tenants were not backlogged for long; give --backlog-seconds")
    longest_prompt = max(one.timing.prompt_tokens for one in phase.sent)
    most_held = max(sample.tokens_held for sample in samples)
    input_term = _DEFAULTS.prompt_token_price * longest_prompt
    output_term = _DEFAULTS.output_token_price * most_held
    return _Backlog(
        greatest_gap=max(max(spell) - min(spell) for spell in spells),
        bound=2 * max(input_term, output_term),
    )


def _figures(found: _Found) -> dict[str, float]:
    loads = found.loads
    throughput = {
        name: loads[name].tokens_per_s(_TENANTS, found.seconds) for name in ("vtc", "fcfs")
    }
    ttfts = {name: percentile(load.ttfts(_BEHAVED), 99) * 1000 for name, load in loads.items()}
    gaps = {name: percentile(load.gaps(_BEHAVED), 50) * 1000 for name, load in loads.items()}
    return {
        **{f"ttft_ms_p99_{name}": value for name, value in ttfts.items()},
        "ttft_p99_vtc_over_alone": median_ratio(
            loads["vtc"].latest_firsts(), loads["alone"].latest_firsts()
        ),
        **{f"itl_ms_p50_{name}": value for name, value in gaps.items()},
        "itl_p50_vtc_over_alone": median_ratio(
            loads["vtc"].usual_gaps(), loads["alone"].usual_gaps()
        ),
        "throughput_ratio_vtc_over_fcfs": median_ratio(throughput["vtc"], throughput["fcfs"]),
        "max_service_gap_over_bound": found.backlogs["vtc"].ratio,
        "max_service_gap_over_bound_fcfs": found.backlogs["fcfs"].ratio,
        "errors": float(sum(load.errors() for load in loads.values())),
    }


def _table(found: _Found) -> Table:
    columns = ("load", "tenant", "sent", "done", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99")
    table = Table(*columns, title="beside a flood (times in ms)", box=box.SIMPLE_HEAD)
    for name, load in found.loads.items():
        for tenant in _BEHAVED if name == "alone" else _TENANTS:
            times = [one * 1000 for one in load.ttfts([tenant])]
            gaps = [one * 1000 for one in load.gaps([tenant])]
            table.add_row(
                name,
                tenant,
                str(len(times)),
                str(load.answered([tenant])),
                f"{statistics.mean(load.tokens_per_s([tenant], found.seconds)):.0f}",
                *(f"{percentile(times, percent):,.0f}" for percent in (50, 99)),
                *(f"{percentile(gaps, percent):,.0f}" for percent in (50, 99)),
            )
    return table


def _gap_table(found: _Found) -> Table:
    columns = ("policy", "greatest gap", "bound", "gap / bound")
    title = "two backlogged tenants (weighted tokens)"
    table = Table(*columns, title=title, box=box.SIMPLE_HEAD)
    for name, backlog in found.backlogs.items():
        gap, bound = f"{backlog.greatest_gap:,.0f}", f"{backlog.bound:,.0f}"
        table.add_row(name, gap, bound, f"{backlog.ratio:.2f}")
    return table
