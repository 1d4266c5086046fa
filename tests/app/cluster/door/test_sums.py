"""What several replicas say, as if they were one engine."""

from __future__ import annotations

import random

from msgspec import structs

from app.cluster.door.sums import Counts, adapters_of_all, best_fates, sum_of
from engine.api import AdapterState, BlockFate, EngineStats, Evicted, ReusePoint
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core
from tests.engine.simulation import run_to_end as run


def test_numbers_are_added_also_by_tenant() -> None:
    cores = [simulated_core(num_blocks=64) for _ in range(2)]
    for number, core in enumerate(cores):
        for tenant in ("a", "b")[: number + 1]:
            core.submit(make_request(f"r{tenant}", [5] * 40, 4, tenant=tenant))
    one, other = (core.stats() for core in cores)
    total = sum_of([one, other])
    assert total.waiting == 3
    assert total.blocks_total == one.blocks_total + other.blocks_total
    assert {name: stats.waiting for name, stats in total.tenants.items()} == {"a": 2, "b": 1}
    assert sum_of([one]) == one


def test_experts_are_those_of_one_and_as_uneven_as_they_are_anywhere() -> None:
    stats = structs.replace(simulated_core().stats(), num_experts=8, experts_read=5)
    unknown, even, uneven = (
        structs.replace(stats, expert_imbalance=value) for value in (None, 1.2, 3.0)
    )
    total = sum_of([unknown, uneven, even])
    assert (total.num_experts, total.expert_imbalance, total.experts_read) == (8, 3.0, 15)
    assert sum_of([unknown, unknown]).expert_imbalance is None


def test_the_curves_of_pools_are_one_of_all() -> None:
    stats = simulated_core(num_blocks=64).stats()
    one = structs.replace(stats, prompt_tokens=300, reuse=[ReusePoint(10, 0.2)])
    other = structs.replace(stats, prompt_tokens=100, reuse=[ReusePoint(20, 0.6)])
    (point,) = sum_of([one, other]).reuse
    assert (point.blocks, round(point.found, 6)) == (30, 0.3)
    silent = structs.replace(stats, reuse=[])
    assert sum_of([silent, other]).reuse == other.reuse


def test_a_blocks_fate_is_the_best_that_anybody_tells() -> None:
    here, unknown = BlockFate("present"), BlockFate("never_seen")
    late, early = BlockFate("evicted", 1.0, "pressure"), BlockFate("evicted", 9.0, "expired")
    answers = [[unknown, early, unknown, here], [unknown, late, early, late]]
    assert best_fates(answers) == [unknown, late, early, here]
    long_ago, stateless = BlockFate("lost_long_ago", 90.0), BlockFate("no_state")
    others = [[unknown, early, stateless], [long_ago, long_ago, late]]
    assert best_fates(others) == [long_ago, early, stateless]


def test_who_pushed_out_whom_is_added_up() -> None:
    one = structs.replace(
        simulated_core().stats(),
        evicted=[Evicted("a", "b", "pressure", 5, 1), Evicted("b", "b", "expired", 9, 0)],
    )
    other = structs.replace(one, evicted=[Evicted("a", "b", "pressure", 4, 2)])
    assert sum_of([one, other]).evicted == [
        Evicted("a", "b", "pressure", 9, 3),
        Evicted("b", "b", "expired", 9, 0),
    ]


def test_an_adapter_is_where_any_replica_has_it() -> None:
    waited_for = AdapterState(
        on_device=False,
        in_host=False,
        num_bytes=0,
        uses=0,
        idle_seconds=None,
        fetch_seconds=None,
        load_seconds=None,
    )
    late, early = (
        structs.replace(
            waited_for,
            num_bytes=100,
            uses=uses,
            idle_seconds=idle,
            fetch_seconds=idle,
            load_seconds=idle / 10,
        )
        for uses, idle in ((2, 1.0), (5, 9.0))
    )
    late = structs.replace(late, in_host=True)
    early = structs.replace(early, on_device=True)
    both = structs.replace(late, on_device=True, uses=7)
    answers = [[None, early, waited_for], [None, late, early], [None, waited_for, None]]
    assert adapters_of_all(answers) == [None, both, early]


def test_what_is_left_to_compute_grows_with_what_waits() -> None:
    core = simulated_core(num_blocks=256)
    draw = random.Random(0)
    assert core.stats().queue_seconds == core.stats().prefill_tokens_per_s == 0
    core.scheduler.pace.observe(0, 100, 0.1)
    left = []
    for number in range(3):
        core.submit(make_request(f"r{number}", random_prompt(draw, 100), 2))
        left.append(core.stats().queue_seconds)
    assert 0 < left[0] < left[1] < left[2]
    assert core.stats().prefill_tokens_per_s > 0
    run(core)
    assert core.stats().queue_seconds == 0


def counted(value: int, engine: str) -> EngineStats:
    return structs.replace(simulated_core().stats(), engine=engine, output_tokens=value)


def test_what_replicas_have_counted_stays_when_they_are_gone() -> None:
    counts = Counts()

    def total(said: dict[int, EngineStats], replicas: list[int]) -> int:
        counts.observe(said, replicas)
        return counts.put_into(sum_of(list(said.values()))).output_tokens

    assert total({1: counted(10, "a"), 2: counted(20, "b")}, [1, 2]) == 30
    assert total({1: counted(15, "a")}, [1, 2]) == 35  # the other one is silent
    assert total({1: counted(16, "a")}, [1]) == 36  # and now it is gone
    assert total({1: counted(20, "c"), 3: counted(2, "d")}, [1, 3]) == 58  # an engine began again
