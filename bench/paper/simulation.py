"""Time goes by: a trace runs through a server, and a cost model says how long each step takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.paper.baselines.memory import MemoryUse
from bench.paper.baselines.server import Server, TracedRequest
from bench.paper.cost_model import StepShape

_WARM_UP = 0.25
"""The share of the trace before anything but latency is averaged: nothing runs at its start."""


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
