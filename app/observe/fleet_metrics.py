"""What a front door knows of its replicas, each by itself, for Prometheus; nothing without any.

A replica has series for as long as it takes calls: there are never more than there are replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.api import EngineStats
from engine.client import FleetFigures, ReplicaFigures

_GAUGES: Final[tuple[tuple[str, str, Callable[[EngineStats], float]], ...]] = (
    ("num_requests_running", "Requests in its batch.", lambda said: said.running),
    ("num_requests_waiting", "Requests waiting for its engine.", lambda said: said.waiting),
    ("queue_seconds", "To compute the prompts that it accepted.", lambda said: said.queue_seconds),
    (
        "kv_cache_usage_perc",
        "The part of its KV blocks that requests hold: 0 ... 1.",
        lambda said: said.blocks_in_use / max(1, said.blocks_total),
    ),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[EngineStats], float]], ...]] = (
    (
        "prefix_cache_queries",
        "Tokens of prompts that its engine of now has looked up.",
        lambda said: said.prompt_tokens,
    ),
    (
        "prefix_cache_hits",
        "Tokens of prompts that its engine of now has found in the cache.",
        lambda said: said.cached_tokens,
    ),
    (
        "generation_tokens",
        "Tokens of answers that its engine of now has computed.",
        lambda said: said.output_tokens,
    ),
)
_LABELS: Final = ("replica",)


class FleetMetrics(Collector):
    """Replicas, and where requests go."""

    def __init__(self) -> None:
        self._figures: FleetFigures | None = None

    def observe(self, figures: FleetFigures | None) -> None:
        """Take over what is known now; `None` where there are no replicas."""
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        if self._figures is not None:
            yield from _of_replicas(self._figures.replicas)
            yield from _of_routing(self._figures)


def _of_replicas(replicas: Sequence[ReplicaFigures]) -> Iterator[Metric]:
    up = _gauge("replica_up", "Whether it computes, as far as this door knows.", _LABELS)
    restarts = _counter("replica_engine_restarts", "Engines that took a dead one's place.", _LABELS)
    lag = _gauge(
        "replica_index_lag_seconds",
        "How old what it tells of its blocks is when it is known here.",
        _LABELS,
    )
    lost = _counter("replica_kv_events_lost", "Times that such news had to be asked for.", _LABELS)
    for one in replicas:
        up.add_metric((one.name,), float(one.is_up))
        restarts.add_metric((one.name,), one.engine_restarts)
        lag.add_metric((one.name,), one.index_lag_seconds)
        lost.add_metric((one.name,), one.events_lost)
    yield from (up, restarts, lag, lost)
    said = [(one.name, one.stats) for one in replicas if one.stats is not None]
    for make, families in ((_gauge, _GAUGES), (_counter, _COUNTERS)):
        for name, meaning, value in families:
            family = make(f"replica_{name}", meaning, _LABELS)
            for replica, stats in said:
                family.add_metric((replica,), value(stats))
            yield family


def _of_routing(figures: FleetFigures) -> Iterator[Metric]:
    routed = _counter("requests_routed", "Requests by what chose their replica.", ("by",))
    for by, count in figures.routed.items():
        routed.add_metric((by,), count)
    yield routed
    for name, meaning, value in (
        ("replicas_wanted", "How many there are to be, at least.", figures.num_wanted),
        ("index_blocks", "Blocks that this door knows the place of.", figures.index_blocks),
    ):
        gauge = _gauge(name, meaning)
        gauge.add_metric((), value)
        yield gauge
    moved = _counter("streams_moved", "Streams taken from a replica that was lost or left.")
    moved.add_metric((), figures.streams_moved)
    yield moved


def _gauge(name: str, meaning: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"partywall_{name}", meaning, labels=labels)


def _counter(name: str, meaning: str, labels: tuple[str, ...] = ()) -> CounterMetricFamily:
    return CounterMetricFamily(f"partywall_{name}", meaning, labels=labels)
