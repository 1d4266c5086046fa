"""Who pushed out whom is counted to the block, told for a minute, and bounded."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine.api import CachePolicy, Evicted, Loss, TenantShare
from engine.blocks.evictions import Evictions
from engine.serve.core import EngineCore
from tests.engine.blocks.eviction.test_leases import Clock
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core


def told(evictions: Evictions) -> list[Evicted]:
    evictions.check()
    return evictions.told(lambda pages: pages)


def serve(core: EngineCore, seed: int, tenant: str, **fields: object) -> None:
    prompt = random_prompt(random.Random(seed), 38)
    core.submit(make_request(f"r{seed}", prompt, 1, tenant=tenant, **fields))
    run_to_end(core)
    core.scheduler.check()


def test_a_minute_later_nothing_is_lately() -> None:
    clock = Clock()
    evictions = Evictions(clock)
    evictions.add("acme", "bulk", "pressure", 3)
    clock.now = 30.0
    evictions.add("acme", "bulk", "pressure", 4)
    evictions.add("acme", "acme", "expired", 1)
    assert told(evictions) == [
        Evicted("acme", "bulk", "pressure", 7, 7),
        Evicted("acme", "acme", "expired", 1, 1),
    ]
    clock.now = 62.0
    assert [one.lately for one in told(evictions)] == [4, 1]
    clock.now = 95.0
    assert [(one.blocks, one.lately) for one in told(evictions)] == [(7, 0), (1, 0)]
    evictions.add("bulk", "acme", "pressure", 2)
    assert told(evictions)[0] == Evicted("bulk", "acme", "pressure", 2, 2)


def test_deleted_blocks_are_nobodys_evictions() -> None:
    evictions = Evictions(float)
    evictions.add("acme", "", "deleted", 9)
    assert (told(evictions), evictions.num_pages) == ([Evicted("acme", "", "deleted", 9, 9)], 0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(0, 40),
            st.integers(1, 5),
            st.floats(0, 9),
            st.booleans(),
        ),
        max_size=400,
    )
)
def test_however_many_tenants_there_are_all_is_counted_in_a_few_pairs(
    order: list[tuple[int, int, int, float, bool]],
) -> None:
    clock, expected, lately = Clock(), 0, Counter[int]()
    evictions = Evictions(clock)
    for owner, by, pages, wait, is_leased in order:
        clock.now += wait
        why: Loss = "expired" if is_leased else "pressure"
        evictions.add(f"t{owner}", f"t{by}", why, pages)
        expected += pages
        lately[int(clock.now / 5)] += pages
    few = told(evictions)
    assert len(few) <= 66
    assert sum(one.blocks for one in few) == expected == evictions.num_pages
    assert sum(one.lately for one in few) == sum(
        pages for turn, pages in lately.items() if turn > int(clock.now / 5) - 12
    )


def test_an_engine_tells_whose_request_took_whose_blocks() -> None:
    core = simulated_core(num_blocks=24)
    serve(core, 1, "acme")
    assert core.stats().evicted == []
    for seed in range(2, 5):
        serve(core, seed, "bulk")
    stats = core.stats()
    pairs = {(one.owner, one.by, one.why): one.blocks for one in stats.evicted}
    assert pairs["acme", "bulk", "pressure"] > 0
    assert set(pairs) <= {("acme", "bulk", "pressure"), ("bulk", "bulk", "pressure")}
    assert stats.evicted_blocks == sum(pairs.values())
    core.forget_tenant("bulk")
    after = {(one.owner, one.by, one.why): one.blocks for one in core.stats().evicted}
    assert after["bulk", "", "deleted"] > 0
    assert core.stats().evicted_blocks == stats.evicted_blocks
    core.scheduler.check()


def test_what_a_lease_has_let_go_is_told_by_its_limit() -> None:
    core = simulated_core(num_blocks=24)
    few = TenantShare(max_leased_blocks=2)
    serve(core, 1, "acme", cache=CachePolicy(lease_s=60.0), share=few)
    for seed in range(2, 5):
        serve(core, seed, "bulk")
    assert {one.why for one in core.stats().evicted if one.owner == "acme"} == {"own_quota"}
