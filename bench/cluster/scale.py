"""What front doors and Redis take at sizes that no machine here has: measured small, multiplied.

The index and the router are filled as at full size, but for the number of blocks; replicas tell of
their blocks at the pace that `bench routing` simulates; Redis serves a real service. What grows
with the size is then multiplied by it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.table import Table

from bench.cluster.door_load import (
    BLOCK_SIZE,
    EventLoad,
    IndexLoad,
    StateLoad,
    measure_decisions,
    measure_events,
    measure_index,
    measure_states,
)
from bench.cluster.replica import Pace
from bench.cluster.store_load import StoreLoad, measure_store
from bench.registry import BenchError, Result

FIGURES: Final[Mapping[str, str]] = {
    "index_bytes_per_block": "resident memory of a front door for a block in its index, bytes",
    "index_us_per_stored_block": "processor time to take in that a block was stored, us",
    "index_us_per_removed_block": "the same of one that was removed, us",
    "index_us_per_lookup": "processor time to look a prompt of 64 blocks up, us",
    "index_longest_ms": "the longest that the events of 64 blocks took, by the clock, ms",
    "snapshot_us_per_block": "processor time for a block of those told again to a new door, us",
    "decisions_per_s_per_core": "choices of one of --replicas replicas, with their books",
    "event_kib_per_s_per_replica": "what a replica at 90 % load tells each door, KiB/s",
    "event_blocks_per_s_per_replica": "blocks that this stores or removes, 1/s",
    "requests_per_s_per_replica": "requests that it serves at that load, 1/s",
    "redis_commands_per_request": "commands that a stored response sends, a script being one",
    "redis_server_us_per_request": "processor time of Redis for it, us",
    "redis_kib_per_tenant": "memory of Redis for a tenant, its key and the audit's line, KiB",
    "state_kib_per_s_per_replica": "what a replica tells each door of its tenants, KiB/s",
    "state_cores_per_replica": "share of a core that this takes of a door",
    "finding_cores_per_door": "share of a core that it takes of a replica, for each door",
    "state_bytes_per_tenant": "memory of a door for a tenant that a replica knows, bytes",
    "whole_kib_per_s_per_replica": "what it would tell if it told of all each time, KiB/s",
    "whole_cores_per_replica": "share of a core that this would take of a door",
    "replicas_per_door_core": "replicas whose events take all of one core",
    "new_door_s": "until a new door knows --blocks, at one core, s",
}
_SIZES: Final = (10, 100, 1000)
_COUNTS: Final = (
    *("replicas", "tenants", "blocks", "index_blocks", "requests", "made_tenants", "simulated"),
    *("known_tenants", "live_tenants"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """All that is multiplied."""

    index: IndexLoad
    events: EventLoad
    store: StoreLoad
    states: StateLoad
    decisions: Mapping[int, float]
    """A second, by number of replicas."""

    @property
    def us_per_event_block(self) -> float:
        """Of blocks as many of which come as go."""
        return (self.index.stored_us + self.index.removed_us) / 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--replicas", type=int, default=1000, help="that are multiplied to")
    parser.add_argument("--tenants", type=int, default=100_000, help="the same")
    parser.add_argument("--blocks", type=int, default=10**9, help="the same")
    parser.add_argument("--index-blocks", type=int, default=4_000_000, help="that are measured")
    parser.add_argument("--requests", type=int, default=400, help="that Redis serves")
    parser.add_argument("--made-tenants", type=int, default=500, help="that are made in Redis")
    parser.add_argument("--simulated", type=int, default=3000, help="requests that are simulated")
    parser.add_argument("--known-tenants", type=int, default=10_000, help="of each replica")
    parser.add_argument("--live-tenants", type=int, default=64, help="of those, with requests")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")


def run(options: argparse.Namespace) -> Result:
    """Measure the parts, and multiply."""
    for name in _COUNTS:
        if getattr(options, name) < 1:
            raise BenchError(f"--{name.replace('_', '-')}: must be at least 1")
    measured = Measured(
        measure_index(options.index_blocks, options.replicas, options.seed),
        measure_events(options.simulated, BLOCK_SIZE, options.seed),
        measure_store(options.requests, options.made_tenants),
        measure_states(options.known_tenants, options.live_tenants, options.seed),
        {size: measure_decisions(size, options.seed) for size in (*_SIZES, options.replicas)},
    )
    figures = _figures(measured, options.replicas, options.blocks)
    sizes = options.replicas, options.blocks, options.tenants, options.known_tenants
    reported = {"block_size": BLOCK_SIZE, "pace": asdict(Pace())}
    return Result(figures, [_table(measured, *sizes)], reported)


def _figures(measured: Measured, replicas: int, blocks: int) -> dict[str, float]:
    index, events, store = measured.index, measured.events, measured.store
    states = measured.states
    return {
        "index_bytes_per_block": index.bytes_per_block,
        "index_us_per_stored_block": index.stored_us,
        "index_us_per_removed_block": index.removed_us,
        "index_us_per_lookup": index.chain_us,
        "index_longest_ms": index.longest_ms,
        "snapshot_us_per_block": index.snapshot_us,
        "decisions_per_s_per_core": measured.decisions[replicas],
        "event_kib_per_s_per_replica": events.kib_per_s,
        "event_blocks_per_s_per_replica": events.blocks_per_s,
        "requests_per_s_per_replica": events.requests_per_s,
        "redis_commands_per_request": store.commands,
        "redis_server_us_per_request": store.server_us,
        "redis_kib_per_tenant": store.kib_per_tenant,
        "state_kib_per_s_per_replica": states.changes.kib_per_s,
        "state_cores_per_replica": states.changes.cores,
        "finding_cores_per_door": states.replica_cores,
        "state_bytes_per_tenant": states.bytes_per_tenant,
        "whole_kib_per_s_per_replica": states.whole.kib_per_s,
        "whole_cores_per_replica": states.whole.cores,
        "replicas_per_door_core": 1e6 / (events.blocks_per_s * measured.us_per_event_block),
        "new_door_s": blocks * index.snapshot_us / 1e6,
    }


def _table(measured: Measured, replicas: int, blocks: int, tenants: int, known: int) -> Table:
    """Everything at several sizes; blocks and tenants by the share of replicas."""
    sizes = sorted({*_SIZES, replicas})
    table = Table("what", *(f"{size:,} replicas" for size in sizes), title="multiplied")
    index, events, store = measured.index, measured.events, measured.store

    def row(what: str, unit: str, values: Sequence[float]) -> None:
        table.add_row(what, *(f"{value:,.3g} {unit}".strip() for value in values))

    row("blocks", "", [blocks * size / replicas for size in sizes])
    row("tenants", "", [tenants * size / replicas for size in sizes])
    row("requests", "/s", [events.requests_per_s * size for size in sizes])
    in_gib = index.bytes_per_block / 2**30
    row("index of a door", "GiB", [in_gib * blocks * size / replicas for size in sizes])
    row("events to a door", "MiB/s", [events.kib_per_s * size / 1024 for size in sizes])
    cores = measured.us_per_event_block * events.blocks_per_s / 1e6
    row("cores of a door for events", "", [cores * size for size in sizes])
    for told, how in ((measured.states.changes, "that changed"), (measured.states.whole, "all")):
        row(f"tenants told of, {how}", "MiB/s", [told.kib_per_s * size / 1024 for size in sizes])
        row(f"cores of a door for these, {how}", "", [told.cores * size for size in sizes])
    per_replica = measured.states.bytes_per_tenant * known / 2**30
    row("memory of a door for these", "GiB", [per_replica * size for size in sizes])
    row("decisions a core", "/s", [measured.decisions[size] for size in sizes])
    choosing = [events.requests_per_s * size / measured.decisions[size] for size in sizes]
    row("cores for decisions, all doors", "", choosing)
    new = index.snapshot_us * blocks / replicas / 1e6
    row("until a new door knows all", "s", [new * size for size in sizes])
    per_s = events.requests_per_s * store.commands
    row("Redis: commands", "/s", [per_s * size for size in sizes])
    shards = events.requests_per_s * store.server_us / 1e6
    row("Redis: busy cores", "", [shards * size for size in sizes])
    kib = store.kib_per_tenant * tenants / replicas
    row("Redis: memory of tenants", "MiB", [kib * size / 1024 for size in sizes])
    return table
