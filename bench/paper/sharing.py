"""Memory that the sequences of a request save by sharing blocks (the paper's section 6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from bench.paper.cost_model import PAPER_SLOTS
from bench.paper.paged import Paged
from bench.paper.systems import MAX_RUNNING
from bench.paper.workloads import Workload
from engine.schedule.scheduler import Scheduler

WIDTHS = (2, 4, 6)


@dataclass(slots=True)
class Saving:
    """The mean over steps of (blocks without sharing - blocks) / blocks without sharing.

    If requests ever wait, only steps count in which some do: at the end, the longest ones are left.
    """

    total: float = 0.0
    steps: int = 0
    waited: bool = False

    @property
    def mean(self) -> float:
        """A share of memory."""
        return self.total / max(1, self.steps)

    def look(self, scheduler: Scheduler) -> None:
        """Count the step that the scheduler has planned."""
        waits = scheduler.lifecycle.num_waiting > 0
        if waits and not self.waited:
            self.total, self.steps, self.waited = 0.0, 0, True
        if waits == self.waited:
            tables = chain.from_iterable(group.blocks for group in scheduler.running.values())
            unshared = sum(map(len, tables))
            self.total += (unshared - scheduler.pool.num_in_use) / unshared
            self.steps += 1


def parallel_sampling(
    workload: Workload, width: int, num_requests: int, num_slots: int = PAPER_SLOTS
) -> float:
    """What `width` samples of each request save, in Partywall's own tables, memory being full.

    All samples of a request are as long as its answer in the trace, as in the paper.
    """
    server = Paged(num_slots, MAX_RUNNING, num_sequences=width)
    saving = Saving()
    server.runner.observe = lambda: saving.look(server.core.scheduler)
    trace = workload.trace(num_requests / workload.seconds)
    for request in trace:
        server.submit(request)
    while not server.is_idle:
        server.step()
    return saving.mean
