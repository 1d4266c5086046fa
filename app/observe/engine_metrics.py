"""What the engine says of itself, for Prometheus: a snapshot at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.api import COUNTERS, EngineStats

_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "prompt_tokens": ("prefix_cache_queries", "Tokens of prompts that were looked up."),
    "cached_tokens": ("prefix_cache_hits", "Tokens of prompts that were found in the cache."),
    "drafted_tokens": ("spec_decode_num_draft_tokens", "Guesses that were verified."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens", "Guesses that were right."),
    "expert_passes": ("expert_passes", "Layers of experts that steps have computed."),
    "experts_read": ("experts_read", "Experts whose weights these layers have read."),
    "expert_rows": ("expert_rows", "Tokens in these layers, once for each of their experts."),
}
"""Counters that dashboards know by other names."""
_LABELLED: Final = (
    "preemptions",
    "recomputed",
    "plan_seconds",
    "compute_seconds",
    "commit_seconds",
)
_OF_EXPERTS: Final = ("expert_passes", "experts_read", "expert_rows")
"""There only where a model has some, and something counts them."""
_PARTS: Final = ("plan", "compute", "commit")


class EngineMetrics(Collector):
    """An engine's blocks, requests and counters; these go on growing when it is started again."""

    def __init__(self) -> None:
        self._stats: EngineStats | None = None
        self._is_up = False
        self._before: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        """What engines had counted that have ended."""

    def observe(self, stats: EngineStats | None) -> None:
        """Take over a snapshot; `None` where the engine did not answer."""
        self._is_up = stats is not None
        if stats is None:
            return
        last = self._stats
        if last is not None and stats.engine != last.engine:
            for name in COUNTERS:
                self._before[name] += getattr(last, name)
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        yield _gauge("engine_up", "Whether the engine answered this scrape.", float(self._is_up))
        if self._stats is not None:
            yield from _gauges(self._stats)
            yield from self._counters(self._stats)

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        count = {name: self._before[name] + getattr(stats, name) for name in COUNTERS}
        preemptions = CounterMetricFamily(
            "partywall_num_preemptions",
            "Requests that made room for others, by what becomes of their blocks.",
            labels=("kind",),
        )
        preemptions.add_metric(("recompute",), count["recomputed"])
        preemptions.add_metric(("swap",), count["preemptions"] - count["recomputed"])
        yield preemptions
        meaning = "Time of the engine's loop by part of a step."
        seconds = CounterMetricFamily("partywall_step_seconds", meaning, labels=("part",))
        for part in _PARTS:
            seconds.add_metric((part,), count[f"{part}_seconds"])
        yield seconds
        for name in COUNTERS:
            is_counted = name not in _OF_EXPERTS or stats.num_experts > 0
            if name not in _LABELLED and is_counted:
                shown, meaning = _NAMES.get(name, (f"engine_{name}", name.replace("_", " ")))
                yield CounterMetricFamily(f"partywall_{shown}", meaning, count[name])


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    free = stats.blocks_total - stats.blocks_in_use - stats.blocks_cached
    blocks = {
        "in_use": stats.blocks_in_use,
        "cached": stats.blocks_cached,
        "free": free,
        "pinned": stats.blocks_pinned,
        "leased": stats.blocks_leased,
        "total": stats.blocks_total,
    }
    meaning = "KV blocks by state; pinned ones are in use, leased ones in use or cached."
    yield _by_state("kv_blocks", meaning, blocks)
    host = {"used": stats.host_blocks_used, "total": stats.host_blocks_total}
    yield _by_state("host_blocks", "Blocks in host memory by state.", host)
    for name, meaning, value in (
        ("num_requests_running", "Requests in the engine's batch.", stats.running),
        ("num_requests_waiting", "Requests waiting for the engine.", stats.waiting),
        (
            "kv_cache_usage_perc",
            "The part of the KV blocks that requests hold: 0 ... 1.",
            stats.blocks_in_use / max(1, stats.blocks_total),
        ),
        ("kv_blocks_peak_in_use", "Most KV blocks in use at once.", stats.peak_blocks_in_use),
        ("queue_seconds", "To compute the prompts that were accepted.", stats.queue_seconds),
        ("kept_bytes", "Bytes of blocks on disk, kept over a restart.", stats.kept_bytes),
    ):
        yield _gauge(name, meaning, value)
    if stats.num_experts:
        yield _gauge("experts", "Experts of a layer.", stats.num_experts)
    if stats.expert_imbalance is not None:
        meaning = "Tokens of a layer's busiest expert by the mean of all, lately."
        yield _gauge("expert_imbalance", meaning, stats.expert_imbalance)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"partywall_{name}", documentation, value)


def _by_state(name: str, documentation: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"partywall_{name}", documentation, labels=("state",))
    for state, value in values.items():
        family.add_metric((state,), value)
    return family
