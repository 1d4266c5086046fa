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

from app.upkeep.engine_metrics import EngineMetrics

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
        self.engine = EngineMetrics(self.registry)

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
