import pytest

from engine.schedule.swap_or_recompute import (
    ComputeCost,
    CopyCost,
    CostModel,
    Loss,
    SwapOrRecompute,
)


def costs(step_tokens: int = 100) -> CostModel:
    """A copied block takes as long as two computed tokens."""
    return CostModel(
        swap_out=CopyCost(1.0, 1.0),
        swap_in=CopyCost(1.0, 1.0),
        compute=ComputeCost(2.0, 1.0, per_pair=0.0, step_tokens=step_tokens, per_decode_step=2.0),
    )


def loss(blocks: int, lost: int, survives: int = 0) -> Loss:
    return Loss(
        swap_outs=blocks,
        swap_ins=blocks,
        remaining=[(survives + lost - 1, 1)],
        lost=[(survives, lost)],
    )


def test_a_request_comes_back_by_whatever_is_cheaper_for_it() -> None:
    recovery = SwapOrRecompute("auto", costs())
    assert recovery.way_back(loss(blocks=2, lost=6)) == "recompute"
    assert recovery.way_back(loss(blocks=2, lost=9)) == "swap"
    assert recovery.way_back(loss(blocks=8, lost=9)) == "recompute", "more to copy"
    assert recovery.way_back(loss(blocks=8, lost=3, survives=100)) == "recompute"


@pytest.mark.parametrize("policy", ["swap", "recompute"])
def test_a_policy_other_than_auto_is_followed_whatever_it_costs(policy: str) -> None:
    recovery = SwapOrRecompute(policy, costs())  # type: ignore[arg-type]
    assert recovery.way_back(loss(blocks=1000, lost=1)) == policy
    assert recovery.way_back(loss(blocks=1, lost=1000)) == policy


def test_computing_is_predicted_by_steps_tokens_and_attended_pairs() -> None:
    cost = ComputeCost(5.0, 1.0, per_pair=0.5, step_tokens=4, per_decode_step=2.0)
    assert cost.seconds([(0, 3)]) == 5 + 3 + 0.5 * (1 + 2 + 3)
    assert cost.seconds([(10, 1), (0, 4)]) == 2 * 5 + 5 + 0.5 * (11 + 10)
    assert cost.seconds([(10, 1), (3, 1)]) == 2 + 2 + 0.5 * (11 + 4), "one step that decodes"
    assert cost.seconds([]) == 0


def test_host_blocks_come_back_only_where_computing_them_takes_longer() -> None:
    recovery = SwapOrRecompute("auto", costs())
    assert recovery.should_bring_back(2, without=(0, 9), having=(4, 5))
    assert not recovery.should_bring_back(2, without=(0, 9), having=(6, 8))


def test_predictions_follow_what_is_observed() -> None:
    model = costs()
    recovery = SwapOrRecompute("auto", model)
    request = loss(blocks=2, lost=9)
    assert recovery.way_back(request) == "swap"
    for _ in range(50):
        model.observe_swap_in(2, 6.0)
    assert model.swap_in_seconds(2) == pytest.approx(6.0, rel=0.05)
    assert recovery.way_back(request) == "recompute"
    for _ in range(50):
        model.observe_compute([(0, 100)], 2.0 + 3 * 100.0)
    assert model.compute_seconds([(0, 8)]) == pytest.approx(2.0 + 3 * 8.0, rel=0.05)
    for _ in range(50):
        model.observe_compute([(50, 2)], 4.0 + 6.0)
    assert model.compute_seconds([(0, 8)]) == pytest.approx(4.0 + 3 * 8.0, rel=0.05)
    assert recovery.way_back(request) == "swap"
    for _ in range(50):
        model.observe_swap_out(2, 21.0)
    assert recovery.way_back(request) == "recompute"


def test_one_disturbed_observation_changes_little() -> None:
    model = costs()
    for _ in range(50):
        model.observe_swap_out(3, 4.0)
    model.observe_swap_out(3, 4000.0)
    assert model.swap_out_seconds(3) < 8


def test_decoding_steps_say_nothing_about_prefill() -> None:
    model = costs()
    for _ in range(50):
        model.observe_compute([(40, 1)] * 8 + [(0, 4)], 100.0)
    assert model.compute_seconds([(0, 8)]) == 10


def test_replayed_decode_steps_do_not_make_prefill_look_cheap_or_dear() -> None:
    """A GPU's costs: an eager step takes 15 ms whatever it computes, a replayed one 2 ms."""
    model = CostModel(
        swap_out=CopyCost(0.0, 0.001),
        swap_in=CopyCost(0.0, 0.001),
        compute=ComputeCost(0.015, 5e-6, 0.0, step_tokens=2048, per_decode_step=0.003),
    )
    prefill = [(0, 4096)]
    for turn in range(400):
        model.observe_compute([(50 + turn, 1)] * 3, 0.002)
        if turn % 20 == 0:
            model.observe_compute([(0, 100)], 0.015 + 100 * 5e-6)
    assert model.compute_seconds(prefill) == pytest.approx(2 * 0.015 + 4096 * 5e-6, rel=0.1)
    assert model.compute_seconds([(1000, 1)]) == pytest.approx(0.002, rel=0.1)
