"""What steps take is learned from them, and drafts that lose pause: on a clock that tests turn."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.draft.balance import Balances
from engine.draft.times import StepTimes
from engine.draft.worth import RowCosts
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore
from tests.engine.draft.guesses import Seer
from tests.engine.run.test_steps import prompt_that_goes_on
from tests.engine.simulated_model import expected_output
from tests.engine.simulation import make_request, run_to_end, simulated_core

HERE = RowCosts(((1, 8.6), (4, 9.5), (8, 10.4), (16, 15.9), (32, 32.0)))
CURVE = HERE.curve(200)

Cost = Callable[[int, int], float]
"""What a step of so many sequences and rows takes."""


def taught(cost: Cost, num_sequences: int, counts: list[int], times: int = 60) -> StepTimes:
    """Has seen steps without drafts, and with so many."""
    found = StepTimes(HERE, 64)
    for count in [0, *counts] * times:
        found.observe(num_sequences, num_sequences + count, 0, cost(num_sequences, count))
    return found


def test_without_drafts_a_step_takes_what_such_steps_have_taken() -> None:
    found = taught(lambda alone, _: 1.7 * CURVE[alone], 4, [])
    assert found.plain(4, 0) == pytest.approx(1.7 * 9.5)
    assert found.plain(32, 0) == pytest.approx(32.0), "other sizes are to show it themselves"


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_drafts_add_what_they_have_added(factor: float) -> None:
    found = taught(lambda _, count: 9.5 + factor * (CURVE[4 + count] - 9.5), 4, [4, 12])
    added = found.added(4, 4, 28)
    assert added == sorted(added)
    for count in (4, 12):
        assert added[count - 1] == pytest.approx(factor * (CURVE[4 + count] - 9.5), rel=0.2)


def test_what_one_draft_costs_at_least_is_learned_as_well() -> None:
    found = taught(lambda _, count: 10.4 + (4.0 if count else 0.0), 8, [1])
    assert found.added(8, 8, 1)[0] == pytest.approx(4.0, rel=0.1)


def test_a_disturbed_step_overturns_nothing() -> None:
    found = taught(lambda _, count: CURVE[4 + count], 4, [4])
    before = found.plain(4, 0), found.added(4, 4, 4)[-1]
    found.observe(4, 4, 0, 900.0)
    found.observe(4, 8, 0, 900.0)
    after = found.plain(4, 0), found.added(4, 4, 4)[-1]
    assert all(one <= 4 * other for one, other in zip(after, before, strict=True))


def test_what_was_dear_is_tried_again_later() -> None:
    found = taught(lambda _, count: 9.5 + 9 * (CURVE[4 + count] - 9.5), 4, [8])
    dear = found.added(4, 4, 8)[-1]
    for _ in range(1500):
        found.observe(4, 4, 0, 9.5)
    assert found.added(4, 4, 8)[-1] < 0.3 * dear


def test_now_and_then_a_step_without_drafts_is_due() -> None:
    found = StepTimes(HERE, 64)
    assert found.is_due_without(2), "nothing is known of what they take"
    found.observe(2, 2, 0, 9.0)
    for _ in range(63):
        assert not found.is_due_without(2)
        found.observe(2, 5, 0, 9.5)
    found.observe(2, 5, 0, 9.5)
    assert found.is_due_without(2)
    found.observe(2, 2, 0, 9.0)
    assert not found.is_due_without(2)


def test_drafts_that_lose_pause_until_a_trial_is_paid_for() -> None:
    balances = Balances()
    assert balances.may_draft(1)
    balances.add(1, -9.0)
    assert not balances.may_draft(1)
    assert balances.may_draft(5), "other sizes have a balance of their own"
    waited = 0
    while not balances.may_draft(1):
        balances.allow(1)
        waited += 1
    assert 3 / 0.005 <= waited + 1 <= 3 / 0.005 + 2
    for _ in range(1000):
        balances.add(1, 1.0)
        assert balances.may_draft(1)
    balances.add(1, -15.0)
    assert balances.may_draft(1), "what was gained may be lost"
    balances.add(1, -500.0)
    assert not balances.may_draft(1)
    for _ in range(18 * 200 + 1):
        balances.allow(1)
    assert balances.may_draft(1), "the next trial comes, whatever was lost"


def test_the_more_sequences_the_less_may_be_lost() -> None:
    balances = Balances()
    before = float("inf")
    for num_sequences in (1, 2, 4, 8, 16, 32, 64):
        balances.add(num_sequences, 1000.0)
        lost = 0
        while balances.may_draft(num_sequences):
            balances.add(num_sequences, -0.01)
            lost += 1
        assert lost < before
        before = lost
    assert before <= 100 * 16 / 8 + 1, "two of the last size's steps"


def test_looks_in_vain_are_paid_from_an_allowance_and_from_what_drafts_gained() -> None:
    balances = Balances()
    looks = 0
    for _ in range(1000):
        if balances.may_draft(40):
            balances.looked_in_vain(40, 0.03)
            looks += 1
        balances.allow(40)
    assert 1000 * 0.0025 / 0.03 - 1 <= looks <= 1000 * 0.0025 / 0.03 + 3
    assert balances.may_draft(1)
    balances.add(40, 0.15)
    for _ in range(5):
        assert balances.may_draft(40)
        balances.looked_in_vain(40, 0.03)
    balances.looked_in_vain(40, 90.0)
    for _ in range(21):
        balances.allow(40)
    assert not balances.may_draft(40), "it costs the drafts' balance as well"
    balances.add(40, 20.0)
    assert balances.may_draft(40)


def seconds_of(core: EngineCore, cost: Cost, num_sequences: int, rounds: int = 3) -> float:
    """What rounds of requests of 50 tokens each take, so many at once; outputs are checked."""
    now = [100.0]
    execute = core._runner.execute

    def timed(plan: StepPlan) -> Sampled:
        decoding = len(plan.chunks)
        now[0] += cost(decoding, plan.num_tokens - decoding)
        return execute(plan)

    prompts = {str(i): prompt_that_goes_on(3 + i, 50) for i in range(num_sequences)}
    expected = {name: expected_output(one, 50) for name, one in prompts.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.run.steps.perf_counter", lambda: now[0])
        patch.setattr("engine.schedule.speculation.perf_counter", lambda: now[0])
        patch.setattr(core._runner, "execute", timed)
        for _ in range(rounds):
            for name, prompt in prompts.items():
                core.submit(make_request(name, prompt, 50, cache=False))
            assert run_to_end(core) == expected
    return now[0] - 100.0


def speedup(cost: Cost, right: float, num_sequences: int) -> float:
    """Of drafts of which so many are right, once it is known what they cost."""
    drafter = Seer(random.Random(2), right)
    with_drafts = simulated_core(200, 16, 256, 64, drafter=drafter, row_costs=HERE)
    without = simulated_core(200, 16, 256, 64)
    seconds_of(with_drafts, cost, num_sequences)
    return seconds_of(without, cost, num_sequences) / seconds_of(with_drafts, cost, num_sequences)


@pytest.mark.parametrize("num_sequences", [1, 4])
@pytest.mark.parametrize("right", [0.0, 0.7])
def test_drafts_that_cost_more_than_was_measured_cost_next_to_nothing(
    right: float, num_sequences: int
) -> None:
    def dear(alone: int, count: int) -> float:
        return CURVE[alone] * (1 + count / alone)

    assert speedup(dear, right, num_sequences) > 0.95


def test_drafts_grow_shorter_where_each_row_reads_experts_of_its_own() -> None:
    """Which no measurement at start has told."""

    def drafted(row: float) -> int:
        core = simulated_core(200, 16, 256, 64, drafter=Seer(random.Random(2), 0.7), row_costs=HERE)
        counts = [0]
        for _ in range(2):  # what rows cost is known in the second one
            seconds_of(core, lambda alone, count: CURVE[alone] + count * row, 1)
            counts.append(core.stats().drafted_tokens)
        return counts[2] - counts[1]

    cheap, dear, hopeless = drafted(0.3), drafted(2.0), drafted(8.6)
    assert cheap > 1.3 * dear
    assert dear > 5 * hopeless


def test_drafts_that_cost_less_than_was_measured_are_used_the_more() -> None:
    def as_measured(alone: int, count: int) -> float:
        return CURVE[alone + count]

    def cheap(alone: int, count: int) -> float:
        return CURVE[alone] + 0.2 * (CURVE[alone + count] - CURVE[alone])

    assert speedup(cheap, 0.9, 4) > 1.2 * speedup(as_measured, 0.9, 4)
    assert speedup(as_measured, 0.9, 1) > 2
