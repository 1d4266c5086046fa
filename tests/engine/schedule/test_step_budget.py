"""Steps that fail: without memory they are tried again, smaller; others end the engine at last."""

import random
from collections.abc import Callable

import pytest
from msgspec import structs

from engine.api import BeamParams, EngineBroken, StepOutOfMemory
from engine.schedule import prefill
from engine.schedule.budget import StepBudget
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore
from tests.engine.simulated_model import expected_hypotheses, expected_output, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core


def fail_when(
    core: EngineCore, is_too_large: Callable[[StepPlan], bool], error: type[Exception]
) -> list[int]:
    """Let steps fail after they have overwritten memory; returns the sizes of those that do not."""
    runner, sizes = core._runner, []
    launch = runner.launch if hasattr(runner, "launch") else runner.execute

    def attempt(plan: StepPlan) -> Sampled:
        if is_too_large(plan):
            for chunk in plan.chunks:
                runner.memory[chunk.sequence.table.blocks[chunk.start // 4 :]] = -7
            raise error
        sizes.append(plan.num_tokens)
        return launch(plan)

    setattr(runner, "launch" if hasattr(runner, "launch") else "execute", attempt)
    return sizes


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("num_host_blocks", [0, 40])
@pytest.mark.parametrize("most", [1, 3, 11])
def test_a_step_without_memory_is_tried_again_smaller_and_ends_nothing(
    most: int, num_host_blocks: int, runs_ahead: bool
) -> None:
    rng = random.Random(most)
    core = simulated_core(num_blocks=40, num_host_blocks=num_host_blocks, runs_ahead=runs_ahead)
    sizes = fail_when(core, lambda plan: plan.num_tokens > most, StepOutOfMemory)
    prompts = {str(i): random_prompt(rng, rng.randrange(1, 50)) for i in range(9)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 12, tenant=rng.choice("ab")))
    assert run_to_end(core) == {name: expected_output(prompts[name], 12) for name in prompts}
    assert max(sizes) <= most
    assert core.stats().blocks_in_use == 0


def test_what_was_computed_before_a_step_without_memory_is_not_computed_again() -> None:
    core = simulated_core(step_token_budget=16)
    prompt = random_prompt(random.Random(1), 50)
    core.submit(make_request("r", prompt, 5))
    core.step()
    core.step()
    failed: list[StepPlan] = []

    def is_first(plan: StepPlan) -> bool:
        failed.append(plan)
        return len(failed) == 1

    sizes = fail_when(core, is_first, StepOutOfMemory)
    assert run_to_end(core)["r"] == expected_output(prompt, 5)
    assert sizes[0] == 8, "half of the step that has failed"
    assert sum(sizes[:3]) == 50 - 32, "32 tokens had been computed"


def test_a_request_that_no_step_has_memory_for_ends_alone() -> None:
    core = simulated_core()
    fail_when(
        core,
        lambda plan: any(chunk.sequence.request_id == "huge" for chunk in plan.chunks),
        StepOutOfMemory,
    )
    prompts = {name: random_prompt(random.Random(name), 20) for name in ("huge", "one", "two")}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt))
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    errors: dict[str, str | None] = {}
    while not core.is_idle:
        for delta in core.step():
            outputs[delta.request_id] += delta.token_ids
            if delta.finish_reason == "error":
                errors[delta.request_id] = delta.error
        core.scheduler.check()
    assert errors == {"huge": "StepOutOfMemory in the engine"}
    assert all(outputs[name] == expected_output(prompts[name], 8) for name in ("one", "two"))


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_request_wider_than_a_step_runs_alone(runs_ahead: bool) -> None:
    core = simulated_core(runs_ahead=runs_ahead, num_blocks=100)
    core.scheduler.budget.halve(4)
    prompts = [random_prompt(random.Random(i), 20) for i in range(3)]
    beam = BeamParams(num_beams=5)
    core.submit(make_request("narrow", prompts[0]))
    core.submit(structs.replace(make_request("wide", prompts[1]), num_sequences=4))
    core.submit(structs.replace(make_request("beams", prompts[2]), beam=beam))
    outputs = run_all_to_end(core)
    assert outputs["narrow"][0] == expected_output(prompts[0], 8)
    assert outputs["wide"] == {i: expected_output(prompts[1], 8, i) for i in range(4)}
    (best,) = expected_hypotheses(prompts[2], 8, beam)
    assert outputs["beams"][0] == best.token_ids


def test_steps_grow_again_when_many_have_succeeded() -> None:
    budget = StepBudget(32, 16)
    assert budget.halve(20)
    assert (budget.num_tokens, budget.num_sequences) == (10, 10)
    assert not budget.halve(20), "that was tried"
    assert budget.halve(9)
    sizes = []
    for _ in range(2000):
        budget.succeeded()
        sizes.append((budget.num_tokens, budget.num_sequences))
    assert list(dict.fromkeys(sizes)) == [(4, 4), (8, 8), (16, 16), (32, 16)]


def test_the_third_failed_step_in_a_row_ends_the_engine_with_its_requests_alive() -> None:
    core = simulated_core()
    prompt = random_prompt(random.Random(1), 20)
    is_broken = True
    fail_when(core, lambda _: is_broken, RuntimeError)
    for name in "ab":
        core.submit(make_request(name, prompt))
        assert [delta.finish_reason for delta in core.step()] == ["error"]
    is_broken = False
    core.submit(make_request("c", prompt))
    run_to_end(core)
    is_broken = True
    for name in "de":
        core.submit(make_request(name, prompt))
        core.step()
    core.submit(make_request("f", prompt))
    with pytest.raises(EngineBroken):
        core.step()
    assert "f" in core.scheduler.running, "another engine goes on with it"


def test_a_device_that_computes_prompts_but_no_token_behind_them_is_known_for_sick() -> None:
    core = simulated_core()
    generator = random.Random(1)

    def decodes(plan: StepPlan) -> bool:
        return any(chunk.start >= chunk.sequence.num_prompt_tokens for chunk in plan.chunks)

    fail_when(core, decodes, RuntimeError)
    for name in "ab":
        core.submit(make_request(name, random_prompt(generator, 20)))
        good, failed = core.step(), core.step()
        assert [delta.finish_reason for delta in good + failed] == [None, "error"]
    core.submit(make_request("c", random_prompt(generator, 20)))
    core.step()
    with pytest.raises(EngineBroken):
        core.step()


def test_the_third_plan_in_a_row_that_fails_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = simulated_core()
    prompt = random_prompt(random.Random(1), 20)

    def plan() -> StepPlan:
        raise RuntimeError

    for names in ("ab", "cd"):
        with monkeypatch.context() as broken:
            broken.setattr(core.scheduler, "plan", plan)
            for name in names:
                core.submit(make_request(name, prompt))
                assert [delta.finish_reason for delta in core.step()] == ["error"]
        core.submit(make_request("good", prompt))
        run_to_end(core)
    monkeypatch.setattr(core.scheduler, "plan", plan)
    for name in "ef":
        core.submit(make_request(name, prompt))
        core.step()
    core.submit(make_request("g", prompt))
    with pytest.raises(EngineBroken):
        core.step()


def test_hashing_between_failed_steps_does_not_hide_that_the_device_is_sick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill, "_MOST_HASHED", 4)
    monkeypatch.setattr(prefill, "_LEAST_HASHED", 1)
    core = simulated_core()
    fail_when(core, lambda _: True, RuntimeError)
    prompt = random_prompt(random.Random(1), 40)  # ten blocks, two of them in a round
    for name in "ab":
        core.submit(make_request(name, prompt))
        assert [core.step() for _ in range(4)] == [[]] * 4
        assert [delta.finish_reason for delta in core.step()] == ["error"]
    core.submit(make_request("c", prompt))
    assert [core.step() for _ in range(4)] == [[]] * 4
    with pytest.raises(EngineBroken):
        core.step()
