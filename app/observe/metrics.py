"""What the service counts, for Prometheus; every label has few values."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder

from app.observe.engine_metrics import EngineMetrics
from app.observe.fleet_metrics import FleetMetrics
from app.observe.sharing import Sharing
from app.observe.traffic import Traffic

_RANK_SECONDS = 60.0
"""Between two times at which tenants get series of their own, or lose them."""


class Metrics:
    """One service's own registry."""

    def __init__(self, most_tenants: int = 20) -> None:
        """Up to `most_tenants` have series of their own, and as many registered prompts
        and adapters.
        """
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._counter(
            "requests",
            "Requests by route and outcome (an HTTP status, or how a response ended).",
            "route",
            "outcome",
        )
        self.limited = self._counter(
            "limited", "Requests refused because their tenant has reached this limit.", "limit"
        )
        self.loop_failures = self._counter(
            "loop_failures", "Failures of a background loop, which was then started again.", "loop"
        )
        self._tasks = self._gauge("asyncio_tasks", "Tasks of the event loop.")
        self.streams_running = self._gauge("streams_running", "Requests at the engine now.")
        self.store_up = self._gauge("store_up", "Whether the tenant store takes writes.")
        self.sockets_open = self._gauge("sockets_open", "Open WebSockets.")
        self.engine = EngineMetrics()
        self.fleet = FleetMetrics()
        self.traffic = Traffic(most_tenants)
        self.sharing = Sharing()
        for collector in (self.engine, self.fleet, self.traffic):
            self.registry.register(collector)
        self._ranked_at = time.monotonic()

    def count_refused(self, route: str, status: int) -> None:
        """Account for a request that was answered with an error."""
        self.requests.labels(route, str(status)).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The registry in a format of Prometheus' that is accepted, and its media type.

        To be called from the event loop.
        """
        self._tasks.set(len(asyncio.all_tasks()))
        if time.monotonic() - self._ranked_at >= _RANK_SECONDS:
            self._ranked_at = time.monotonic()
            self.traffic.rank()
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"partywall_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"partywall_{name}", documentation, registry=self.registry)
