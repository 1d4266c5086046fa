"""What front doors and Redis take, measured small."""

from __future__ import annotations

import argparse

import pytest

from bench.cluster import scale
from bench.cluster.door_load import measure_decisions, measure_events, measure_index, measure_states
from bench.cluster.scale import Measured
from bench.cluster.store_load import StoreLoad
from bench.registry import BenchError


def test_the_parts_are_measured_and_multiplied() -> None:
    events = measure_events(60, 16, seed=0)
    assert 16 < 1024 * events.kib_per_s / events.blocks_per_s < 32  # a hash, and its share of words
    index = measure_index(20_000, 10, seed=0)
    assert 0 < index.bytes_per_block < 1000
    assert index.chain_us > 0 < index.snapshot_us
    store = StoreLoad(commands=4.0, server_us=100.0, kib_per_tenant=2.0)
    decisions = dict.fromkeys((10, 100, 1000), measure_decisions(10, seed=0))
    states = measure_states(400, 8, seed=0)
    assert states.changes.kib_per_s < states.whole.kib_per_s / 10
    assert states.changes.cores < states.whole.cores
    assert states.replica_cores > 0
    measured = Measured(index, events, store, states, decisions)
    figures = scale._figures(measured, 1000, 10**9)
    assert figures.keys() == scale.FIGURES.keys()
    assert figures["new_door_s"] == pytest.approx(1000 * index.snapshot_us)
    per_replica = events.blocks_per_s * (index.stored_us + index.removed_us) / 2e6
    assert figures["replicas_per_door_core"] == pytest.approx(1 / per_replica)
    table = scale._table(measured, 1000, 10**9, 100_000, 10_000)
    assert len(table.rows) == 17


@pytest.mark.parametrize("name", ["--replicas", "--index-blocks", "--made-tenants"])
def test_a_count_of_nothing_is_refused(name: str) -> None:
    parser = argparse.ArgumentParser()
    scale.add_arguments(parser)
    with pytest.raises(BenchError, match=f"{name}: must be at least 1"):
        scale.run(parser.parse_args([name, "0"]))
