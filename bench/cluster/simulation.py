"""Front doors and replicas in simulated time: requests come, are routed, and are served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.cluster.routing.index import PrefixIndex
from app.cluster.routing.router import ReplicaLoad
from bench.cluster.policies import Doors, Policy, Question, Seen
from bench.cluster.replica import Pace, Replica, Served
from bench.cluster.workloads import Request, Workload
from bench.common.figures import percentile
from bench.registry import BenchError
from engine.blocks.pool import BlockPool

REPORT_SECONDS: Final = 0.25
"""Between two reports of a replica's load."""
EVENT_SECONDS: Final = 0.01
"""From the end of a step until all doors know what blocks it has stored and removed."""


@dataclass
class Outcome:
    """What has come of a workload."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)

    @property
    def hit_ratio(self) -> float:
        """Part of the tokens of all prompts that was found."""
        return self.cached_tokens / self.prompt_tokens

    def ttft_ms(self, percent: float) -> float:
        """A percentile of the time to the first token."""
        return 1e3 * percentile(self.ttft_s, percent)

    def add(self, served: Served) -> None:
        """A request has ended."""
        self.prompt_tokens += served.request.prompt_tokens
        self.cached_tokens += served.cached_tokens
        self.ttft_s.append(served.first_token_at - served.request.at)


class Cluster:
    """Replicas with a pool each, or with one for all of them, and doors that choose among them."""

    def __init__(
        self,
        workload: Workload,
        num_replicas: int,
        pace: Pace,
        doors: Doors,
        num_doors: int = 2,
        *,
        pooled: bool,
    ) -> None:
        size = workload.replica_tokens // workload.block_size
        longest = max(r.prompt_tokens + r.output_tokens for r in workload.requests)
        if longest > size * workload.block_size:
            raise BenchError(f"a replica's memory is less than a request of {longest} tokens")
        shared = BlockPool(num_replicas * size) if pooled else None
        self.replicas = [
            Replica(size, workload.block_size, pace, shared) for _ in range(num_replicas)
        ]
        self.index = PrefixIndex()
        self._doors: list[Policy] = doors(num_doors, self.index, workload.block_size)
        self._door_of: dict[str, Policy] = {}
        self._sent = [[0] * num_replicas for _ in range(num_doors)]
        """Requests that each door has sent to each replica since its last report."""
        self._reports: list[Seen] = []
        self._reported_at = -1.0
        self._outcome = Outcome()
        self._counted_from = float("inf")
        self._num_warming = workload.num_warming

    def serve(self, requests: Sequence[Request]) -> Outcome:
        """Serve all requests, which are in order of arrival."""
        for number, request in enumerate(requests):
            self._report(request.at)
            self._run_until(request.at)
            door = number % len(self._doors)
            replica = self._doors[door].choose(Question(request, self._seen(door), request.at))
            self._sent[door][replica] += 1
            if number == self._num_warming:
                self._counted_from = request.at
            self._door_of[request.name] = self._doors[door]
            self.replicas[replica].submit(request)
        self._run_until(float("inf"))
        return self._outcome

    def _run_until(self, then: float) -> None:
        """All replicas take their steps, those first that are due first: they may share a pool."""
        while True:
            due = [one for one in self.replicas if one.num_requests and one.clock < then]
            if not due:
                break
            min(due, key=lambda one: one.clock).step(then)
        for number, replica in enumerate(self.replicas):
            while replica.changes and replica.changes[0].at + EVENT_SECONDS <= then:
                change = replica.changes.popleft()
                self.index.removed(number, change.removed)
                self.index.stored(number, change.stored)
            for served in replica.take_ended():
                if served.request.at >= self._counted_from:
                    self._outcome.add(served)
                self._door_of.pop(served.request.name).finished(served.request)

    def _report(self, now: float) -> None:
        """Let replicas say how loaded they are, if it is time."""
        due = now // REPORT_SECONDS * REPORT_SECONDS
        if due <= self._reported_at:
            return
        self._reported_at = due
        self._run_until(due)
        self._sent = [[0] * len(self.replicas) for _ in self._doors]
        self._reports = [
            Seen(
                ReplicaLoad(
                    one.queue_seconds, one.kv_free_share, one.prefill_tokens_per_s, said_at=due
                ),
                one.num_requests,
            )
            for one in self.replicas
        ]

    def _seen(self, door: int) -> dict[int, Seen]:
        return {
            number: Seen(report.load, report.num_requests + self._sent[door][number])
            for number, report in enumerate(self._reports)
        }
