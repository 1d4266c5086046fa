"""What the engine says of itself, for Prometheus: a snapshot at each scrape."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from engine.api import EngineStats

_COUNTS = (
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
    "drafted_tokens",
    "accepted_tokens",
    "forks",
    "copied_blocks",
    "restored_blocks",
    "lease_block_seconds",
    "leases_broken",
    "leases_cut",
    "invariant_violations",
)


class EngineMetrics:
    """The gauges that show an engine's blocks, requests and counters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"partywall_{name}", documentation, labels, registry=registry)

        self._blocks = gauge(
            "kv_blocks",
            "KV blocks by state; pinned ones are in use, leased ones in use or cached.",
            ("state",),
        )
        self._host_blocks = gauge("host_blocks", "Blocks in host memory by state.", ("state",))
        self._kept = gauge("kept_bytes", "Bytes of blocks on disk, kept over a restart.")
        self._peak = gauge("kv_blocks_peak_in_use", "Most KV blocks in use at once.")
        self._running = gauge("engine_running", "Requests in the engine's batch.")
        self._waiting = gauge("engine_waiting", "Requests waiting for the engine.")
        self._up = gauge("engine_up", "Whether the engine answered this scrape.")
        self._counts = {
            name: gauge(f"engine_{name}", f"Engine counter since its start: {name}.")
            for name in _COUNTS
        }

    def observe(self, stats: EngineStats | None) -> None:
        """Take over a snapshot; `None` where the engine did not answer."""
        self._up.set(stats is not None)
        if stats is None:
            return
        free = stats.blocks_total - stats.blocks_in_use - stats.blocks_cached
        self._blocks.labels("in_use").set(stats.blocks_in_use)
        self._blocks.labels("cached").set(stats.blocks_cached)
        self._blocks.labels("free").set(free)
        self._blocks.labels("pinned").set(stats.blocks_pinned)
        self._blocks.labels("leased").set(stats.blocks_leased)
        self._blocks.labels("total").set(stats.blocks_total)
        self._host_blocks.labels("used").set(stats.host_blocks_used)
        self._host_blocks.labels("total").set(stats.host_blocks_total)
        self._kept.set(stats.kept_bytes)
        self._peak.set(stats.peak_blocks_in_use)
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        for name, gauge in self._counts.items():
            gauge.set(getattr(stats, name))
