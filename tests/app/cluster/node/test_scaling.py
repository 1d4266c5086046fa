"""How many replicas there are to be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from app.cluster.node.scaling import ByNeed, replicas_needed


@pytest.mark.parametrize(
    ("queues", "shares", "needed"),
    [
        ([0.0, 0.0, 0.0], [0.0, 0.1, 0.0], 1),
        ([1.9], [0.5], 1),
        ([2.1], [0.5], 2),
        ([5.0, 4.0], [0.5, 0.5], 5),
        ([0.0], [0.9], 2),
        ([0.0, 0.0], [0.8, 0.8], 2),
        ([0.0, 0.0], [0.9, 0.9], 3),
        ([1.5, 1.5], [0.0, 0.0], 2),
    ],
)
def test_what_waits_and_what_is_full_asks_for_replicas(
    queues: list[float], shares: list[float], needed: int
) -> None:
    assert replicas_needed(queues, shares, queue_seconds=2.0) == needed


def test_that_a_replica_takes_long_to_start_asks_for_no_more() -> None:
    assert replicas_needed([3.0], [0.2], 2.0) == 2
    assert replicas_needed([3.0, 0.0], [0.2, 0.0], 2.0) == 2


def test_while_no_replica_has_said_anything_their_number_stays() -> None:
    said = {"queue_seconds": {"a": 5.0}, "kv_share": {"a": 0.1}}
    silent = SimpleNamespace(target_num_replicas=4, aggregated_metrics={})
    assert ByNeed(2.0)(silent) == (4, {})
    busy = SimpleNamespace(target_num_replicas=1, aggregated_metrics=said)
    assert ByNeed(2.0)(busy) == (3, {})
