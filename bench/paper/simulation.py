"""Time goes by: a trace runs through a server, and a cost model says how long each step takes.

So is found latency over request rate, and the rate that a system sustains at a given latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bench.paper.baselines.server import MemoryUse, Server, TracedRequest
from bench.paper.cost_model import PAPER_SLOTS, StepShape, opt_13b_on_a100
from bench.paper.systems import make_server
from bench.paper.workloads import Workload

_WARM_UP = 0.25
"""The share of the trace before anything but latency is averaged: nothing runs at its start."""

LATENCY = 0.1
"""Seconds a token at which rates are compared: ten tokens a second, where the curves bend."""
LATENCIES = (LATENCY, 0.25, 0.5)
_LIMIT = 0.75
_FRACTIONS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 1.0, 1.06, 1.15, 1.3, 1.5, 1.8, 2.2)
"""Of the saturated throughput: the rates that are tried, until latency passes `LATENCIES`."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a trace. All but `latency` is of the time when requests still come.

    Memory and running requests are means over that time, without its first quarter.
    """

    latency: float
    """Mean of each request's seconds from arrival to answer over its output tokens."""
    memory: MemoryUse
    running: float
    throughput: float
    """Requests answered a second; of the whole run, if none was answered in that time."""
    steps: int
    seconds: float
    """From the first arrival of the trace to its last answer."""


class Cost(Protocol):
    """How long a step takes."""

    def seconds(self, shape: StepShape) -> float:
        """Of the step that was just computed."""
        ...


def simulate(
    server: Server, trace: Sequence[TracedRequest], cost: Cost, limit: float = math.inf
) -> Run:
    """Run `trace` (in order of arrival) to its end.

    If its latency is certain to exceed `limit`, the run is cut short and its latency infinite.
    """
    first, last = _WARM_UP * trace[-1].arrival, trace[-1].arrival
    clock = latency = weight = running = 0.0
    memory = MemoryUse()
    arrived = steps = answered = counted = 0
    while answered < len(trace):
        if server.is_idle:
            clock = max(clock, trace[arrived].arrival)
        while arrived < len(trace) and trace[arrived].arrival <= clock:
            server.submit(trace[arrived])
            arrived += 1
        step = server.step()
        seconds = cost.seconds(step.shape)
        if first <= clock <= last:
            weight += seconds
            running += step.running * seconds
            memory += step.memory.weighted(seconds)
            counted += len(step.finished)
        clock += seconds
        steps += 1
        for number in step.finished:
            request = trace[number]
            latency += (clock - request.arrival) / len(request.output)
        answered += len(step.finished)
        if latency > limit * len(trace):
            latency = math.inf
            break
    if not counted:
        counted, weight = answered, clock - trace[0].arrival
    return Run(
        latency=latency / len(trace),
        memory=memory.weighted(1 / weight),
        running=running / weight,
        throughput=counted / weight,
        steps=steps,
        seconds=clock - trace[0].arrival,
    )


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
