"""Virtual token counters keep their promises, on a simulated model and under random loads."""

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import TenantShare
from engine.schedule.prefill import HashAllowance
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

BLOCK = 4
PROMPT_PRICE, OUTPUT_PRICE = 1.0, 2.0


@dataclass(frozen=True)
class Snapshot:
    """One moment between two decisions of the scheduler."""

    served: dict[str, float]
    backlogged: frozenset[str]


@dataclass(frozen=True)
class Burst:
    """`count` requests of one tenant, all at once."""

    tenant: str
    step: int
    count: int
    prompt: int
    output: int


def play(core: EngineCore, bursts: list[Burst], weights: dict[str, float]) -> list[Snapshot]:
    """Run the load to its end, checking the books and that the engine conserves work."""
    rng = random.Random(1)
    names = itertools.count()
    snapshots = []
    for step in range(20_000):
        for burst in bursts:
            if burst.step == step:
                for _ in range(burst.count):
                    core.submit(
                        make_request(
                            str(next(names)),
                            random_prompt(rng, burst.prompt),
                            burst.output,
                            burst.tenant,
                            share=TenantShare(weight=weights[burst.tenant]),
                        )
                    )
        if core.is_idle and step > max(burst.step for burst in bursts):
            return snapshots
        if core.is_idle:
            continue
        snapshots += run_step(core)
    raise AssertionError("the load did not end")


def run_step(core: EngineCore) -> list[Snapshot]:
    """One step of `core`, seen after its plan and after its commit."""
    scheduler = core.scheduler
    plan = scheduler.plan()
    assert plan.num_tokens > 0, "nothing is computed while requests wait"
    planned = look(core)
    first = scheduler.prefill.next_waiting(set(), HashAllowance())
    if first is not None and plan.num_tokens < scheduler._config.step_token_budget:
        assert not scheduler.prefill.fits(scheduler.lifecycle.admission(first)), (
            "there was room for it"
        )
    sampled = core._runner.execute(plan)
    scheduler.commit(plan, sampled)
    scheduler.check()
    # Whoever has left its queue by now waits no more; who arrives later starts a new interval.
    return [planned, Snapshot(look(core).served, planned.backlogged)]


def look(core: EngineCore) -> Snapshot:
    accounts = core.scheduler.accounts
    return Snapshot(
        {account.tenant: account.served for account in accounts.known()},
        frozenset(accounts.waiting),
    )


def largest_gap(snapshots: list[Snapshot], one: str, other: str) -> float:
    """max |served(one) - served(other)| over every interval in which both are backlogged."""
    largest = 0.0
    low = high = None
    for snapshot in snapshots:
        if {one, other} <= snapshot.backlogged:
            lead = snapshot.served[one] - snapshot.served[other]
            low = lead if low is None else min(low, lead)
            high = lead if high is None else max(high, lead)
            largest = max(largest, high - low)
        else:
            low = high = None
    return largest


def bound(core: EngineCore, bursts: list[Burst], weights: dict[str, float]) -> float:
    """Twice what one tenant may be served between two admissions (Sheng et al., Theorem 4.4)."""
    longest_prompt = max(burst.prompt for burst in bursts)
    memory = core.info.num_blocks * core.info.block_size
    return 2 * max(PROMPT_PRICE * longest_prompt, OUTPUT_PRICE * memory) / min(weights.values())


def loads(tenants: str) -> st.SearchStrategy[list[Burst]]:
    burst = st.builds(
        Burst,
        tenant=st.sampled_from(tenants),
        step=st.integers(0, 150),
        count=st.integers(1, 30),
        prompt=st.integers(1, 50),
        output=st.integers(1, 40),
    )
    return st.lists(burst, min_size=2, max_size=8)


@settings(max_examples=scaled(12))
@given(
    bursts=loads("abc"),
    weights=st.tuples(*[st.sampled_from([0.5, 1.0, 1.0, 2.0])] * 3),
    num_blocks=st.integers(23, 60),
    slots=st.integers(1, 12),
    budget=st.integers(12, 40),
)
def test_two_backlogged_tenants_are_served_alike_within_the_papers_bound(
    bursts: list[Burst],
    weights: tuple[float, float, float],
    num_blocks: int,
    slots: int,
    budget: int,
) -> None:
    shares = dict(zip("abc", weights, strict=True))
    core = simulated_core(num_blocks, BLOCK, budget, slots)
    snapshots = play(core, bursts, shares)
    for one, other in itertools.combinations("abc", 2):
        assert largest_gap(snapshots, one, other) <= bound(core, bursts, shares)


def flood_and_late(count: int = 40) -> list[Burst]:
    """Tenant a fills the queue; tenant b asks for as much a little later."""
    return [Burst("a", 0, count, 8, 16), Burst("b", 5, count, 8, 16)]


@pytest.mark.parametrize("fairness", ["vtc", "fcfs"])
def test_first_come_first_served_breaks_the_bound_that_counters_keep(fairness) -> None:
    core = simulated_core(20, BLOCK, 32, 4, fairness=fairness)
    bursts = flood_and_late()
    weights = {"a": 1.0, "b": 1.0}
    gap = largest_gap(play(core, bursts, weights), "a", "b")
    assert (gap <= bound(core, bursts, weights)) == (fairness == "vtc")


def test_service_follows_the_weights() -> None:
    core = simulated_core(40, BLOCK, 32, 6)
    weights = {"a": 1.0, "b": 3.0}
    snapshots = play(core, flood_and_late(60), weights)
    both = [shot.served for shot in snapshots if {"a", "b"} <= shot.backlogged]
    served = {name: (both[-1][name] - both[0][name]) * weights[name] for name in weights}
    assert served["b"] == pytest.approx(3 * served["a"], rel=0.1)


def test_idleness_banks_no_credit() -> None:
    weights = {"a": 1.0, "b": 1.0}
    core = simulated_core(20, BLOCK, 32, 4)
    play(core, [Burst("b", 0, 1, 8, 1), Burst("a", 1, 60, 8, 16)], weights)
    before = look(core).served
    assert before["a"] - before["b"] > 2000, "enough to be repaid, were it a debt"
    # Both in one moment: what b could claim from the past would come out of a's service now.
    later = play(core, [Burst("a", 0, 60, 8, 16), Burst("b", 0, 60, 8, 16)], weights)
    assert largest_gap(later, "a", "b") < 200


def test_a_tenant_alone_gets_everything() -> None:
    core = simulated_core(60, BLOCK, 40, 8)
    for index in range(20):
        core.submit(make_request(str(index), [4 + index], 20, tenant="a"))
    core.step()
    assert len(core.scheduler.running) == 8
    run_to_end(core)
    assert core.stats().preemptions == 0


@pytest.mark.parametrize("num_blocks", [200, 24])
def test_each_token_is_charged_once_however_often_it_is_computed(num_blocks: int) -> None:
    core = simulated_core(num_blocks, BLOCK, 40, 8, prefix_cache=False)
    rng = random.Random(5)
    expected = {"a": 0.0, "b": 0.0}
    for index in range(30):
        tenant, prompt = "ab"[index % 2], random_prompt(rng, 3 + index)
        share = TenantShare(weight=1.0 + index % 2)
        core.submit(make_request(str(index), prompt, 20, tenant=tenant, share=share))
        price = PROMPT_PRICE * len(prompt) + OUTPUT_PRICE * len(expected_output(prompt, 20))
        expected[tenant] += price / share.weight
    run_to_end(core)
    assert (core.stats().preemptions > 20) == (num_blocks == 24)
    assert look(core).served == pytest.approx(expected)


def test_a_prompt_from_the_cache_costs_a_fraction() -> None:
    core = simulated_core()
    prompt = random_prompt(random.Random(2), 21)
    costs = []
    for name in ("cold", "hit"):
        before = core.stats().tenants["a"].served if costs else 0.0
        core.submit(make_request(name, prompt, 1, tenant="a"))
        run_to_end(core)
        costs.append(core.stats().tenants["a"].served - before)
    assert costs == pytest.approx([21 + 2, 20 * 0.1 + 1 + 2])


def steps_until_first_token(core: EngineCore, request_id: str, limit: int = 400) -> int:
    for step in range(limit):
        if any(delta.request_id == request_id for delta in core.step()):
            return step
        core.scheduler.check()
    return limit


@pytest.mark.parametrize(("num_blocks", "scarce"), [(400, "slots"), (40, "blocks")])
def test_a_flood_in_every_slot_makes_room_at_once(num_blocks: int, scarce: str) -> None:
    waits = {}
    for fairness in ("vtc", "fcfs"):
        slots = 8 if scarce == "slots" else 16
        core = simulated_core(num_blocks, BLOCK, 32, slots, fairness=fairness)
        rng = random.Random(3)
        for index in range(40):
            core.submit(make_request(f"a{index}", random_prompt(rng, 12), 100, tenant="a"))
        for _ in range(12):
            core.step()
        core.submit(make_request("b", random_prompt(rng, 20), 5, tenant="b"))
        waits[fairness] = steps_until_first_token(core, "b")
        run_to_end(core)
    assert waits["vtc"] <= 1
    assert waits["fcfs"] > 100


def test_the_newest_request_of_the_most_served_tenant_makes_room() -> None:
    core = simulated_core(400, BLOCK, 32, 4)
    for name, count in (("a", 3), ("b", 1)):
        for index in range(count):
            core.submit(make_request(f"{name}{index}", [5, 6, 7], 100, tenant=name))
    for _ in range(10):
        core.step()
    core.submit(make_request("c0", [8, 9], 100, tenant="c"))
    core.step()
    assert set(core.scheduler.running) == {"a0", "a1", "b0", "c0"}


def test_a_long_prompt_of_a_flood_lets_a_less_served_tenants_prompt_pass() -> None:
    core = simulated_core(400, BLOCK, 16, 8)
    rng = random.Random(4)
    core.submit(make_request("a0", random_prompt(rng, 800), 5, tenant="a"))
    core.step()
    core.submit(make_request("b0", random_prompt(rng, 30), 5, tenant="b"))
    assert steps_until_first_token(core, "b0") <= 2
    run_to_end(core)


@pytest.mark.parametrize("steps_before", range(20, 26))
def test_a_prompt_of_several_chunks_is_not_overtaken_by_a_flood(steps_before: int) -> None:
    core = simulated_core(400, BLOCK, 16, 16)
    rng = random.Random(5)
    for index in range(60):
        core.submit(make_request(f"a{index}", random_prompt(rng, 24), 6, tenant="a"))
    for _ in range(steps_before):
        core.step()
    decoding = len(core.scheduler.running)
    assert decoding > 2
    core.submit(make_request("b0", random_prompt(rng, 30), 5, tenant="b"))
    assert steps_until_first_token(core, "b0") < -(-30 // (16 - decoding))
    run_to_end(core)


def test_two_floods_take_turns_without_wearing_each_other_out() -> None:
    steps, preemptions = {}, {}
    for fairness in ("vtc", "fcfs"):
        core = simulated_core(24, BLOCK, 32, 6, prefix_cache=False, fairness=fairness)
        play(core, flood_and_late(), {"a": 1.0, "b": 1.0})
        steps[fairness] = core._steps
        preemptions[fairness] = core.stats().preemptions
    assert steps["vtc"] <= 1.1 * steps["fcfs"]


def test_more_tenants_than_slots_all_come_to_an_end_and_their_turns_stay_long() -> None:
    core = simulated_core(40, BLOCK, 16, 2)
    for index in range(12):
        core.submit(make_request(str(index), [4 + index] * 6, 40, tenant=f"t{index}"))
    outputs = run_to_end(core)
    assert len(outputs) == 12
    assert 0 < core.stats().preemptions < 12 * 40 / 3, "a turn is several tokens long"


@pytest.mark.parametrize(("prefix_cache", "waste"), [(True, 0.03), (False, 0.5)])
def test_turns_waste_little_of_what_was_computed(prefix_cache: bool, waste: float) -> None:
    core = simulated_core(900, BLOCK, 32, 4, prefix_cache=prefix_cache)
    rng = random.Random(6)
    needed = computed = 0
    for index in range(20):
        prompt = random_prompt(rng, 40)
        needed += len(prompt) + len(expected_output(prompt, 120)) - 1
        core.submit(make_request(str(index), prompt, 120, tenant=f"t{index}"))
    while not core.is_idle:
        plan = core.scheduler.plan()
        computed += plan.num_tokens
        core.scheduler.commit(plan, core._runner.execute(plan))
        core.scheduler.check()
    assert core.scheduler.lifecycle.num_preemptions > 10
    assert needed < computed < (1 + waste) * needed


def test_counters_of_tenants_long_gone_are_forgotten() -> None:
    core = simulated_core()
    for index in range(3000):
        core.submit(make_request(str(index), [5], 1, tenant=f"t{index}"))
        core.step()
    assert core.is_idle
    assert 1000 < len(core.scheduler.accounts.known()) < 1100
    assert "t2999" in core.stats().tenants
