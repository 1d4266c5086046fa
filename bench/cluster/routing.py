"""What each way to choose a replica finds in the caches, and how long first tokens take.

Front doors, replicas and requests live in simulated time; block pools, index and router are real.
Three workloads: tenants with conversations, Azure's trace behind system prompts, and Mooncake's
conversations. A load of 100 % is the rate at which the replicas would always be busy, with a full
batch decoding, if they found what one cache finds that is as large as all of theirs together. That
cache runs beside the policies: the same replicas and arrivals, one pool.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.cluster.policies import POLICIES, pooled_doors
from bench.cluster.replica import Pace
from bench.cluster.simulation import EVENT_SECONDS, REPORT_SECONDS, Cluster
from bench.cluster.workloads import WORKLOADS, Workload, load_workload
from bench.registry import BenchError, Result

LOADS: Final = (30, 50, 70, 90)
_HEADLINE: Final = ("tenants", 90)
_OURS: Final = "ours"
_POOLED: Final = "pooled"
_PACE: Final = Pace()


def _meanings() -> dict[str, str]:
    found = {f"hit_ratio_{_POOLED}": "prompt tokens found by one cache as large as all, of all"}
    for policy in POLICIES:
        found[f"hit_ratio_{policy}"] = f"the same by {policy}, of tenants at 90 % load"
        for percent in (50, 99):
            found[f"ttft_ms_p{percent}_{policy}"] = (
                f"time to the first token, percentile {percent}, of tenants at 90 % load, ms"
            )
    found["least_hit_ratio_over_pooled"] = (
        "found by ours over found by the one cache, least of all workloads and loads"
    )
    found["most_ttft_p99_over_next"] = (
        "percentile 99 of ours over the least of all other policies, most of all"
    )
    return found


FIGURES: Final[Mapping[str, str]] = _meanings()


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs have in common."""

    traces: Path
    seed: int
    replicas: int
    requests: int
    """Of a workload, at most."""
    doors: int


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    workload: str
    load: int
    policy: str
    setting: Setting


@dataclass(frozen=True, slots=True)
class Found:
    """What has come of it."""

    hit_ratio: float
    ttft_ms_p50: float
    ttft_ms_p99: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--traces",
        type=Path,
        default=Path("../shared/traces"),
        help="folder of azure_conv_2023.csv and mooncake_conversation.jsonl; "
        "where they are missing, synthetic ones",
    )
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--requests", type=int, default=12_000, help="of a workload, at most")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--doors", type=int, default=2, help="front doors, which take turns")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at once")


def run(options: argparse.Namespace) -> Result:
    """Simulate every policy at every load of every workload."""
    for name, least in (("requests", 2), ("replicas", 1), ("doors", 1), ("processes", 1)):
        if getattr(options, name) < least:
            raise BenchError(f"--{name}: must be at least {least}")
    setting = Setting(
        options.traces, options.seed, options.replicas, options.requests, options.doors
    )
    cases = [
        Case(workload, load, policy, setting)
        for workload in dict.fromkeys([*options.workloads, _HEADLINE[0]])
        for load in LOADS
        for policy in (_POOLED, *POLICIES)
    ]
    found = dict(zip(cases, _simulate_all(cases, options.processes), strict=True))
    by_place = {(case.workload, case.load, case.policy): one for case, one in found.items()}
    reported = {
        "pace": asdict(_PACE),
        "report_seconds": REPORT_SECONDS,
        "event_seconds": EVENT_SECONDS,
        "headline": "tenants at 90 % load",
    }
    tables = [_table(name, by_place) for name in dict.fromkeys(case.workload for case in cases)]
    return Result(_figures(by_place), tables, reported)


def _simulate_all(cases: Sequence[Case], processes: int) -> list[Found]:
    """Time is simulated, so that runs may share a machine."""
    if processes == 1:
        return list(map(simulate, cases))
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(simulate, cases))


def simulate(case: Case) -> Found:
    """Run one case."""
    setting, is_pooled = case.setting, case.policy == _POOLED
    workload = _workload(case.workload, setting)
    doors = pooled_doors if is_pooled else POLICIES[case.policy]
    seconds = _seconds(case.workload, setting) / (case.load / 100)
    cluster = Cluster(workload, setting.replicas, _PACE, doors, setting.doors, pooled=is_pooled)
    outcome = cluster.serve(workload.lasting(seconds))
    return Found(outcome.hit_ratio, outcome.ttft_ms(50), outcome.ttft_ms(99))


@lru_cache
def _workload(name: str, setting: Setting) -> Workload:
    return load_workload(name, setting.traces, setting.seed, setting.requests)


@lru_cache
def _seconds(name: str, setting: Setting) -> float:
    """What all requests take replicas that are always busy, with the hits of one large cache."""
    workload = _workload(name, setting)
    prompts = sum(request.prompt_tokens for request in workload.counted)
    outputs = sum(request.output_tokens for request in workload.counted)
    unhurried = workload.lasting(_PACE.work_seconds(prompts, outputs) / setting.replicas)
    cluster = Cluster(workload, setting.replicas, _PACE, pooled_doors, setting.doors, pooled=True)
    found = cluster.serve(unhurried)
    return _PACE.work_seconds(prompts - found.cached_tokens, outputs) / setting.replicas


Places = Mapping[tuple[str, int, str], Found]


def _figures(found: Places) -> dict[str, float]:
    workload, load = _HEADLINE
    figures = {f"hit_ratio_{_POOLED}": found[workload, load, _POOLED].hit_ratio}
    for policy in POLICIES:
        one = found[workload, load, policy]
        figures[f"hit_ratio_{policy}"] = one.hit_ratio
        figures[f"ttft_ms_p50_{policy}"] = one.ttft_ms_p50
        figures[f"ttft_ms_p99_{policy}"] = one.ttft_ms_p99
    ratios = list(_ratios(found))
    figures["least_hit_ratio_over_pooled"] = min(hits for hits, _ in ratios)
    figures["most_ttft_p99_over_next"] = max(times for _, times in ratios)
    return figures


def _ratios(found: Places) -> Iterator[tuple[float, float]]:
    """Of each workload and load: hits over those of the pool, p99 over that of the next best."""
    for workload, load in dict.fromkeys(place[:2] for place in found):
        ours = found[workload, load, _OURS]
        pooled = found[workload, load, _POOLED].hit_ratio
        others = [found[workload, load, one].ttft_ms_p99 for one in POLICIES if one != _OURS]
        yield ours.hit_ratio / pooled, ours.ttft_ms_p99 / min(others)


def _table(workload: str, found: Places) -> Table:
    table = Table("load", "policy", "hits", "TTFT p50", "p99", title=workload)
    for load in LOADS:
        for policy in (_POOLED, *POLICIES):
            one = found[workload, load, policy]
            table.add_row(
                f"{load} %" if policy == _POOLED else "",
                policy,
                f"{one.hit_ratio * 100:.1f} %",
                f"{one.ttft_ms_p50:,.0f} ms",
                f"{one.ttft_ms_p99:,.0f} ms",
                end_section=policy == _OURS,
            )
    return table
