"""What the service counts, for Prometheus; every label has few values."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.api import EngineStats

_LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Latencies(Collector):
    """A histogram of seconds that can be observed for every token: it takes no lock."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = name
        self._documentation = documentation
        self._counts = [0] * (len(_LATENCY_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Account for a latency that was met so many times. To be called from the event loop."""
        self._counts[bisect_left(_LATENCY_BUCKETS, seconds)] += times
        self._sum += seconds * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """See `prometheus_client.registry.Collector`."""
        bounds = [*map(floatToGoString, _LATENCY_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(
            self._name, self._documentation, buckets=buckets, sum_value=self._sum
        )


class Metrics:
    """One service's own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "partywall_requests",
            "Requests by route and outcome (an HTTP status, or how a response ended).",
            ("route", "outcome"),
            registry=self.registry,
        )
        self.tokens = Counter(
            "partywall_tokens",
            "Tokens of finished responses: prompt (cached ones included), cached, output.",
            ("kind",),
            registry=self.registry,
        )
        self.time_to_first_token = self._latencies(
            "time_to_first_token", "From handing a request to the engine to its first token."
        )
        self.inter_token_latency = self._latencies(
            "inter_token_latency", "Between two tokens of one response."
        )
        self.limited = Counter(
            "partywall_limited",
            "Requests refused because their tenant has reached this limit.",
            ("limit",),
            registry=self.registry,
        )
        self.loop_failures = Counter(
            "partywall_loop_failures",
            "Failures of a background loop, which was then started again.",
            ("loop",),
            registry=self.registry,
        )
        self._tasks = self._gauge("asyncio_tasks", "Tasks of the event loop.")
        self.streams_running = self._gauge("streams_running", "Requests at the engine now.")
        self.sockets_open = self._gauge("sockets_open", "Open WebSockets.")
        self._blocks = Gauge(
            "partywall_kv_blocks",
            "KV blocks by state; pinned ones are in use.",
            ("state",),
            registry=self.registry,
        )
        self._host_blocks = Gauge(
            "partywall_host_blocks",
            "Blocks in host memory by state.",
            ("state",),
            registry=self.registry,
        )
        self._peak = self._gauge("kv_blocks_peak_in_use", "Most KV blocks in use at once.")
        self._running = self._gauge("engine_running", "Requests in the engine's batch.")
        self._waiting = self._gauge("engine_waiting", "Requests waiting for the engine.")
        self._up = self._gauge("engine_up", "Whether the engine answered this scrape.")
        self._engine_counts = {
            name: self._gauge(f"engine_{name}", f"Engine counter since its start: {name}.")
            for name in (
                "steps",
                "prompt_tokens",
                "cached_tokens",
                "output_tokens",
                "preemptions",
                "recomputed",
                "swapped_out",
                "swapped_in",
                "host_hit_blocks",
                "in_block_tokens",
                "spared_keys",
                "forks",
                "copied_blocks",
                "invariant_violations",
            )
        }

    def observe_engine(self, stats: EngineStats | None) -> None:
        """Take over a snapshot of the engine; `None` when it did not answer."""
        self._up.set(stats is not None)
        if stats is None:
            return
        free = stats.blocks_total - stats.blocks_in_use - stats.blocks_cached
        self._blocks.labels("in_use").set(stats.blocks_in_use)
        self._blocks.labels("cached").set(stats.blocks_cached)
        self._blocks.labels("free").set(free)
        self._blocks.labels("pinned").set(stats.blocks_pinned)
        self._blocks.labels("total").set(stats.blocks_total)
        self._host_blocks.labels("used").set(stats.host_blocks_used)
        self._host_blocks.labels("total").set(stats.host_blocks_total)
        self._peak.set(stats.peak_blocks_in_use)
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        for name, gauge in self._engine_counts.items():
            gauge.set(getattr(stats, name))

    def count_refused(self, route: str, status: int) -> None:
        """Account for a request that was answered with an error."""
        self.requests.labels(route, str(status)).inc()

    def count_tokens(self, prompt: int, cached: int, output: int) -> None:
        """Account for one finished response."""
        self.tokens.labels("prompt").inc(prompt)
        self.tokens.labels("cached").inc(cached)
        self.tokens.labels("output").inc(output)

    def render(self) -> bytes:
        """The registry in Prometheus' text format. To be called from the event loop."""
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"partywall_{name}", documentation, registry=self.registry)

    def _latencies(self, name: str, documentation: str) -> Latencies:
        latencies = Latencies(f"partywall_{name}_seconds", documentation)
        self.registry.register(latencies)
        return latencies
