"""Latency over request rate, and the rate that a system sustains at a given latency."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.paper.cost_model import PAPER_SLOTS, opt_13b_on_a100
from bench.paper.simulation import Run, simulate
from bench.paper.systems import make_server
from bench.paper.workloads import Workload

LATENCY = 0.1
"""Seconds a token at which rates are compared: ten tokens a second, where the curves bend."""
LATENCIES = (LATENCY, 0.25, 0.5)
_LIMIT = 0.75
_FRACTIONS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 1.0, 1.06, 1.15, 1.3, 1.5, 1.8, 2.2)
"""Of the saturated throughput: the rates that are tried, until latency passes `LATENCIES`."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One system under one workload."""

    system: str
    workload: str
    saturated: Run
    """Under more load than it can serve."""
    points: list[tuple[float, float]]
    """(requests a second, mean seconds a token), by rate."""

    def sustained(self, latency: float = LATENCY) -> float:
        """The highest rate with at most this latency; its logarithm is interpolated.

        0 if the lowest rate that was tried is too high already.
        """
        below = (0.0, 0.0)
        for rate, found in self.points:
            if found > latency:
                if not below[0]:
                    return 0.0
                span = math.log(found / below[1])
                return below[0] + (rate - below[0]) * math.log(latency / below[1]) / span
            below = (rate, found)
        return below[0]


def curve(system: str, workload: Workload, saturating_rate: float) -> Curve:
    """Saturate the system, then raise the rate until its latency is far beyond the knee."""
    cost = opt_13b_on_a100()
    short = replace(workload, seconds=workload.seconds / 4)
    server = make_server(system, PAPER_SLOTS, measure=workload.has_distinct_prompts)
    saturated = simulate(server, short.trace(saturating_rate), cost)
    points: list[tuple[float, float]] = []
    for fraction in _FRACTIONS:
        rate = fraction * saturated.throughput
        run = simulate(make_server(system, PAPER_SLOTS), workload.trace(rate), cost, _LIMIT)
        if math.isinf(run.latency):
            break
        points.append((rate, run.latency))
        if run.latency > max(LATENCIES):
            break
    return Curve(system, workload.name, saturated, points)
