"""How much of prompts a step computes beside running streams: as its measured time lets it."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from engine.sequences.pace import Pace
from tests.engine.clock import prompt_tokens, with_clock
from tests.engine.simulated_model import expected_output
from tests.engine.simulation import make_request, run_to_end, simulated_core


def taught(target: float, decoding: float, token: float) -> Pace:
    """A pace that has seen steps in which decoding and each token of a prompt take so long."""
    pace = Pace(target)
    for count in (40, 100, 60):
        pace.observe(4, 0, decoding)
        pace.observe(4, count, decoding + count * token)
    return pace


def test_prompts_have_what_decoding_leaves_of_the_target() -> None:
    assert taught(0.050, 0.010, 0.001).prompt_tokens == pytest.approx(40, abs=1)
    assert taught(0.030, 0.010, 0.001).prompt_tokens == pytest.approx(20, abs=1)


def test_where_decoding_alone_misses_the_target_prompts_have_as_long_as_it() -> None:
    assert taught(0.030, 0.200, 0.002).prompt_tokens == pytest.approx(100, abs=1)


def test_prompts_always_get_on() -> None:
    assert taught(0.010, 0.009, 0.100).prompt_tokens == 16


def test_nothing_is_bounded_without_a_target_or_before_anything_is_known() -> None:
    assert taught(0.0, 0.010, 0.001).prompt_tokens is None
    pace = Pace(0.050)
    assert pace.prompt_tokens is None
    pace.observe(4, 0, 0.010)
    pace.observe(1, 3, 0.100)  # too few tokens to tell what one takes
    assert pace.prompt_tokens is None


def test_prompts_alone_teach_what_a_token_takes() -> None:
    pace = Pace(0.050)
    pace.observe(0, 100, 0.100)
    assert pace.prompt_tokens == 50


def test_an_efficient_step_spends_a_twentieth_on_what_it_takes_anyhow() -> None:
    # Of 14 ms to decode 4 tokens, 10 are fixed.
    assert taught(0.050, 0.014, 0.001).efficient_tokens == pytest.approx(200, abs=30)
    assert taught(0.0, 0.014, 0.001).efficient_tokens is None, "without a target"
    assert Pace(0.050).efficient_tokens is None


def test_however_many_decode_something_is_fixed() -> None:
    pace = taught(0.050, 0.010, 0.001)
    for _ in range(30):
        pace.observe(64, 0, 0.030)
    assert pace.efficient_tokens == pytest.approx(60, abs=20)


def test_half_as_many_tokens_are_hidden_as_decoding_alone_could_compute() -> None:
    pace = taught(0.050, 0.010, 0.001)
    assert pace.hidden_rows == 5
    for _ in range(20):
        pace.observe(2, 3, 0.010)
    assert pace.hidden_rows == 5, "what is hidden tells nothing"
    for _ in range(20):
        pace.observe(2, 3, 0.010)
    assert not pace.hidden_rows, "what does decoding alone take now?"
    pace.observe(2, 0, 0.010)
    assert pace.hidden_rows == 5
    assert not Pace(0.050).hidden_rows


def test_prompts_owe_what_they_take_beyond_half_of_the_time() -> None:
    pace = taught(0.050, 0.010, 0.001)
    for _ in range(20):
        pace.observe(4, 0, 0.010)
    assert not pace.is_in_debt
    pace.observe(4, 10, 0.020)
    assert not pace.is_in_debt, "as long as decoding"
    pace.observe(4, 40, 0.050)
    for _ in range(3):
        assert pace.is_in_debt
        pace.observe(4, 0, 0.010)
    assert not pace.is_in_debt, "decoding has had as much"
    pace.observe(0, 500, 0.500)
    assert not pace.is_in_debt, "nobody has waited"


def test_no_debt_grows_for_ever() -> None:
    pace = taught(0.050, 0.010, 0.001)
    for _ in range(1000):
        pace.observe(4, 40, 0.050)
    for _ in range(51):
        pace.observe(4, 0, 0.010)
    assert not pace.is_in_debt


def test_without_a_target_nothing_is_owed() -> None:
    pace = taught(0.0, 0.010, 0.001)
    pace.observe(4, 40, 0.050)
    assert not pace.is_in_debt


def test_a_disturbed_step_does_not_overturn_what_is_known() -> None:
    pace = taught(0.050, 0.010, 0.001)
    pace.observe(4, 40, 9.0)
    pace.observe(4, 0, 9.0)
    assert 16 <= (pace.prompt_tokens or 0) <= 40
    for _ in range(40):
        pace.observe(4, 0, 0.010)
        pace.observe(4, 40, 0.050)
    assert pace.prompt_tokens == pytest.approx(40, abs=2)


def test_a_prompt_alone_takes_whole_budgets_and_beside_a_stream_what_the_target_lets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = simulated_core(num_blocks=400, step_token_budget=200, itl_target_ms=50.0)
    plans = with_clock(core, monkeypatch, decoding=0.010, token=0.001).plans
    stream, prompt = list(range(10, 410)), list(range(20, 620))
    core.submit(make_request("stream", stream, 60))
    for _ in range(8):
        core.step()
    assert [prompt_tokens(plan) for plan in plans[:2]] == [200, 200]
    del plans[:]
    core.submit(make_request("prompt", prompt, 5))
    outputs = run_to_end(core)
    assert outputs["prompt"] == expected_output(prompt, 5)
    beside = [prompt_tokens(plan) for plan in plans if prompt_tokens(plan)]
    assert all(plan.num_decoding for plan in plans[: len(beside)])
    assert 35 <= min(beside[:-1]) <= max(beside) <= 45


@pytest.mark.parametrize("doubling", [2.0, 500.0, 1e5])
@pytest.mark.parametrize("start", [0, 10, 10_000])
def test_who_has_become_slow_may_become_fast_again(doubling: float, start: int) -> None:
    pace = Pace(0.050, doubling)
    for token in (0.100, 0.0001):
        for _ in range(60):
            pace.observe(4, 0, 0.010)
            count = pace.affordable(pace.prompt_tokens or 400, start)
            worth = pace.worth(start, count)
            pace.observe(4, worth, 0.010 + worth * token)
        is_slow = (pace.prompt_tokens or 0) <= 16
        assert is_slow == (token == 0.100)


def test_a_token_that_seems_to_cost_nothing_is_as_good_anywhere() -> None:
    for compute in (
        ComputeCost(0.010, 0.0, 0.001, 200, 0.010),
        ComputeCost(0.010, 0.001, 0.0, 200, 0.010),
    ):
        assert Pace(0.050, compute.doubling).worth(100, 8) == 8


@given(st.floats(10.0, 1e6), st.floats(0.0, 1e5), st.integers(0, 100_000))
def test_what_is_affordable_is_worth_no_more_and_one_token_more_is(
    doubling: float, worth: float, start: int
) -> None:
    pace = Pace(0.050, doubling)
    count = pace.affordable(worth, start)
    assert pace.worth(start, count) <= worth * (1 + 1e-9) or count == 1
    assert pace.worth(start, count + 1) > worth * (1 - 1e-9)
    assert count or worth < 1, "it gets on"
    assert Pace(0.050).affordable(worth, start) == int(worth), "wherever it is"


def test_steps_keep_to_the_target_however_long_the_prompts_are_whose_turn_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compute = ComputeCost(0.010, 0.001, 0.001 / 500, 200, 0.010)
    costs = CostModel(CopyCost(0.0, 1.0), CopyCost(0.0, 1.0), compute)
    core = simulated_core(num_blocks=2000, step_token_budget=200, itl_target_ms=50.0, costs=costs)
    clock = with_clock(core, monkeypatch, decoding=0.010, token=0.001, pair=0.001 / 500)
    core.submit(make_request("stream", list(range(10, 50)), 400))
    for _ in range(8):
        core.step()
    core.submit(make_request("long", list(range(20, 2020)), 5))
    lengths: list[float] = []
    while "long" in core.scheduler.lifecycle.live:
        if len(lengths) % 4 == 0:  # a short one by turns with the long one
            prompt = list(range(len(lengths), len(lengths) + 60))
            core.submit(make_request(f"short {len(lengths)}", prompt, 1))
        before = clock.now
        core.step()
        lengths.append(clock.now - before)
        core.scheduler.check()
    assert max(lengths) < 0.055
    assert statistics.mean(lengths) > 0.035


def test_without_a_target_a_prompt_beside_a_stream_takes_the_whole_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = simulated_core(num_blocks=400, step_token_budget=200, itl_target_ms=0.0)
    plans = with_clock(core, monkeypatch, decoding=0.010, token=0.001).plans
    core.submit(make_request("stream", list(range(10, 50)), 60))
    for _ in range(8):
        core.step()
    core.submit(make_request("prompt", list(range(20, 620)), 5))
    run_to_end(core)
    assert max(prompt_tokens(plan) for plan in plans if plan.num_decoding) == 199


def test_a_target_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="itl_target_ms"):
        EngineConfig(model_path="", itl_target_ms=-1.0)
