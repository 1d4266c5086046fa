"""Tenants take turns over all replicas, not at each one for itself."""

from __future__ import annotations

import random

from msgspec import structs

from app.cluster.door.fairness import Turns
from engine.api import TenantStats
from engine.serve.core import EngineCore
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core

BUSY = TenantStats(
    running=1, waiting=0, blocks_held=0, blocks_shared=0, blocks_cached=0, blocks_pinned=0, served=0
)


def said(**served: float) -> dict[str, TenantStats]:
    return {name: structs.replace(BUSY, served=one) for name, one in served.items()}


def test_a_replica_is_told_of_the_others_service_once() -> None:
    turns = Turns()
    assert not turns.observe(0, said(a=5))  # before anybody was heard
    assert not turns.observe(1, said(a=100))
    assert not turns.observe(1, said(a=130))
    assert turns.observe(0, said(a=9)) == {"a": 30}
    assert not turns.observe(0, said(a=9))
    assert turns.observe(1, said(a=130)) == {"a": 4}
    assert not turns.observe(1, said(a=7))  # forgotten, and back
    assert turns.observe(0, said(a=9)) == {"a": 7}


def test_nobody_is_told_of_tenants_that_it_does_not_serve() -> None:
    turns = Turns()
    turns.observe(0, {})
    turns.observe(1, {})
    turns.observe(1, said(a=50))
    idle = {"a": structs.replace(BUSY, running=0)}
    assert not turns.observe(0, said(b=1) | idle)


def test_what_no_replica_knows_is_forgotten() -> None:
    turns = Turns()
    turns.observe(0, said(a=1))
    turns.observe(1, said(b=1))
    turns.observe(0, {})
    turns.forget(1)
    assert not turns._totals


def served_by(cores: list[EngineCore], *, told: bool) -> dict[str, float]:
    """What two tenants are served; one floods both replicas, the other asks at one alone."""
    rng, turns = random.Random(0), Turns()
    for number, core in enumerate(cores):
        for name in ("flood", "other")[: 2 - number]:
            for index in range(400):
                prompt = random_prompt(rng, 12)
                core.submit(make_request(f"{name}-{index}", prompt, 8, name))
    for step in range(80):
        for number, core in enumerate(cores):
            core.step()
            core.scheduler.check()
            elsewhere = turns.observe(number, core.stats().tenants) if step % 5 == 0 else {}
            if told:
                core.scheduler.served_elsewhere(elsewhere)
    all_tenants = [core.stats().tenants for core in cores]
    assert all(tenants["flood"].waiting for tenants in all_tenants)
    return {
        name: sum(tenants[name].served for tenants in all_tenants if name in tenants)
        for name in ("flood", "other")
    }


def test_a_flood_at_all_replicas_yields_to_who_asks_at_one() -> None:
    alone = served_by([simulated_core(), simulated_core()], told=False)
    shared = served_by([simulated_core(), simulated_core()], told=True)
    assert alone["flood"] > 2 * alone["other"]
    assert shared["flood"] < 1.25 * shared["other"]


def test_who_came_first_stays_first_whatever_others_do() -> None:
    cores = [simulated_core(fairness="fcfs") for _ in range(2)]
    assert served_by(cores, told=True) == served_by(
        [simulated_core(fairness="fcfs") for _ in range(2)], told=False
    )


def test_idle_capacity_elsewhere_is_not_paid_for_without_end() -> None:
    core = simulated_core()
    for name in ("flood", "other"):
        core.submit(make_request(name, [1, 2, 3], 8, name))
    core.step()
    core.scheduler.served_elsewhere({"flood": 1e9, "unknown": 5.0})
    accounts = core.scheduler.accounts
    assert 10_000 < accounts["flood"].counter - accounts["other"].counter < 20_000
    assert accounts["flood"].served < 100
    assert not accounts.get("unknown").counter
