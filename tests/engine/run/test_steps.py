"""Steps that are launched before the tokens of those before them are known change nothing."""

import random
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from engine.api import BeamParams, StepOutOfMemory
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.schedule.test_any_order import (
    FailingStep,
    ManyKindsSchedulerMachine,
    SchedulerMachine,
    StatesSchedulerMachine,
)
from tests.engine.simulated_model import EOS, expected_hypotheses, expected_output, random_prompt
from tests.engine.simulated_runner import LateRunner
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core


def late(core: EngineCore) -> LateRunner:
    return cast("LateRunner", core._runner)


def prompt_that_stops(at: int, length: int = 6) -> list[int]:
    """A prompt whose output is `at` tokens long, the last one a stop token."""
    for seed in range(100_000):
        prompt = random_prompt(random.Random(seed), length)
        if expected_output(prompt, at)[-1] == EOS and len(expected_output(prompt, at)) == at:
            return prompt
    raise AssertionError("no prompt stops there")


def prompt_that_goes_on(length: int, out: int, count: int = 1) -> list[int]:
    for seed in range(1000):
        prompt = random_prompt(random.Random(seed), length)
        if all(EOS not in expected_output(prompt, out, index) for index in range(count)):
            return prompt
    raise AssertionError("every prompt stops")


def failing(error: type[Exception]) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise error

    return fail


class RunAheadMachine(SchedulerMachine):
    """Everything that may happen to requests, while steps are under way."""

    runs_ahead = True

    @precondition(lambda self: not self.core.is_idle)
    @rule(luck=st.integers(0, 9), where=st.sampled_from(["launch", "result"]))
    def fail_a_step(self, luck: int, where: str) -> None:
        if luck:
            return
        self._fail_a_step_at(where, FailingStep)
        assert self.core.is_idle or where == "launch", "only a launch may not have been due"

    @precondition(lambda self: not self.core.is_idle)
    @rule(luck=st.integers(0, 2), where=st.sampled_from(["launch", "result"]))
    def lack_memory(self, luck: int, where: str) -> None:
        if not luck:
            self._fail_a_step_at(where, StepOutOfMemory)

    def _fail_a_step_at(self, where: str, error: type[Exception]) -> None:
        runner = late(self.core)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "launch" if where == "launch" else "compute", failing(error))
            self._take(self.core.step())
        self.core._failures.clear()  # there may be many, at last it would give up
        runner.queue.clear()


class RunAheadManyKindsMachine(RunAheadMachine):
    """The same where layers forget, each kind in its own way."""

    kinds = ManyKindsSchedulerMachine.kinds


class RunAheadStatesMachine(RunAheadMachine):
    """The same where layers keep a state: what is drawn in vain goes through it, too."""

    kinds = StatesSchedulerMachine.kinds


TestRunAheadMachine = RunAheadMachine.TestCase
TestRunAheadManyKindsMachine = RunAheadManyKindsMachine.TestCase
TestRunAheadStatesMachine = RunAheadStatesMachine.TestCase
TestRunAheadManyKindsMachine.settings = settings(max_examples=scaled(20), stateful_step_count=50)
TestRunAheadStatesMachine.settings = settings(max_examples=scaled(30), stateful_step_count=50)
TestRunAheadMachine.settings = settings(max_examples=scaled(80), stateful_step_count=50)


def test_the_next_step_is_launched_before_the_last_one_is_known() -> None:
    core = simulated_core(runs_ahead=True)
    prompt = prompt_that_goes_on(9, 12)
    core.submit(make_request("r", prompt, 12))
    assert run_to_end(core)["r"] == expected_output(prompt, 12)
    assert late(core).launches == [0] + [1] * 11


def test_what_is_drawn_behind_a_stop_token_means_nothing() -> None:
    for at in range(2, 10):  # the stop token at each place of a block
        core = simulated_core(runs_ahead=True)
        prompt = prompt_that_stops(at)
        core.submit(make_request("r", prompt, 40))
        other = prompt_that_goes_on(5, 20)
        core.submit(make_request("other", other, 20))
        outputs = run_to_end(core)
        assert outputs == {"r": expected_output(prompt, 40), "other": expected_output(other, 20)}
        assert core.stats().blocks_in_use == 0
        history = [*prompt, *outputs["r"]]
        core.submit(make_request("again", [*history, 9, 9], 1))
        (delta,) = core.step()
        assert delta.cached_tokens == len(history), "its blocks show what they hold, to the last"


def test_a_request_that_is_aborted_under_way_gives_its_blocks_back_at_once() -> None:
    core = simulated_core(runs_ahead=True)
    prompt, other = prompt_that_goes_on(9, 30), prompt_that_goes_on(7, 30)
    core.submit(make_request("r", prompt, 30))
    for _ in range(4):
        core.step()
    assert late(core).queue, "a step is under way"
    core.abort("r")
    assert core.stats().blocks_in_use == 0
    core.scheduler.check()
    core.submit(make_request("r", other, 30))
    assert run_to_end(core)["r"] == expected_output(other, 30)
    core.scheduler.check()


def test_one_of_several_sequences_can_be_aborted_under_way() -> None:
    core = simulated_core(runs_ahead=True, num_blocks=100)
    prompt = prompt_that_goes_on(9, 20, 3)
    core.submit(make_request("r", prompt, 20, num_sequences=3))
    for _ in range(4):
        core.step()
    core.abort("r", 1)
    core.scheduler.check()
    outputs = run_all_to_end(core)["r"]
    assert outputs.keys() == {0, 2}
    assert all(outputs[i] == expected_output(prompt, 20, i)[4:] for i in outputs)
    assert core.stats().blocks_in_use == 0


def test_sequences_of_a_request_part_without_knowing_their_tokens() -> None:
    core = simulated_core(runs_ahead=True, num_blocks=100)
    prompt = prompt_that_goes_on(10, 12, 4)
    core.submit(make_request("r", prompt, 12, num_sequences=4))
    assert run_all_to_end(core)["r"] == {i: expected_output(prompt, 12, i) for i in range(4)}
    assert core.stats().copied_blocks == 3
    assert late(core).launches == [0] + [1] * 11


@pytest.mark.parametrize("recovery", ["swap", "recompute"])
def test_nobody_is_preempted_before_its_tokens_are_known(recovery: str) -> None:
    core = simulated_core(20, 4, 64, num_host_blocks=40, recovery=recovery, runs_ahead=True)
    rng = random.Random(10)
    prompts = {str(i): random_prompt(rng, 9) for i in range(6)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 40))
    assert run_to_end(core) == {i: expected_output(prompt, 40) for i, prompt in prompts.items()}
    assert core.stats().preemptions > 0
    assert {0, 1} == set(late(core).launches), "it waits where it has to, and nowhere else"
    assert late(core).launches.count(1) > len(late(core).launches) / 2


def test_tenants_take_turns_ahead_as_well() -> None:
    core = simulated_core(900, 4, 32, 4, runs_ahead=True)
    rng = random.Random(6)
    prompts = {str(i): random_prompt(rng, 20) for i in range(10)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 40, tenant=f"t{name}"))
    assert run_to_end(core) == {i: expected_output(prompt, 40) for i, prompt in prompts.items()}
    assert core.stats().preemptions > 3
    served = [core.stats().tenants[f"t{name}"].served for name in prompts]
    costs = [20 + 2 * len(expected_output(prompt, 40)) for prompt in prompts.values()]
    assert served == costs, "each token is charged once, none that means nothing"


def test_beams_wait_for_their_tokens_and_others_go_ahead_again_behind_them() -> None:
    core = simulated_core(100, runs_ahead=True)
    beam = BeamParams(num_beams=3, num_return=3)
    prompt = random_prompt(random.Random(3), 9)
    other = prompt_that_goes_on(7, 30)
    core.submit(make_request("other", other, 30))
    core.submit(make_request("b", prompt, 8, beam=beam))
    outputs = run_all_to_end(core)
    assert outputs["other"][0] == expected_output(other, 30)
    hypotheses = [hypothesis.token_ids for hypothesis in expected_hypotheses(prompt, 8, beam)]
    assert [outputs["b"][index] for index in range(3)] == hypotheses
    assert late(core).launches[:6] == [0] * 6
    assert late(core).launches[-8:] == [1] * 8


def test_tokens_drawn_before_a_launch_fails_still_reach_their_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = simulated_core(runs_ahead=True)
    prompt = prompt_that_goes_on(9, 12)
    core.submit(make_request("r", prompt, 12))
    core.step()
    with monkeypatch.context() as patch:
        patch.setattr(late(core), "launch", failing(FailingStep))
        token, end = core.step()
    assert token.token_ids == expected_output(prompt, 2)[1:]
    assert (end.token_ids, end.finish_reason) == ([], "error")
    assert core.is_idle
    core.scheduler.check()
    assert core.stats().blocks_cached == 0, "what the step was to compute is not found"


def test_copies_of_a_failed_step_under_way_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    core = simulated_core(12, 4, 64, num_host_blocks=30, runs_ahead=True)
    first, second = prompt_that_goes_on(40, 1), prompt_that_goes_on(44, 3)
    core.submit(make_request("first", first, 1))
    run_to_end(core)
    core.submit(make_request("second", second, 3))

    def broken(work: object) -> Sampled:
        raise FailingStep

    with monkeypatch.context() as patch:
        patch.setattr(late(core), "compute", broken)
        core.step()
    late(core).queue.clear()
    core.scheduler.check()
    assert core.stats().host_blocks_used == 0
    core.submit(make_request("again", first, 1))
    assert run_to_end(core)["again"] == expected_output(first, 1)


def test_both_orders_compute_the_same_tokens_in_as_many_steps_but_for_those_in_vain() -> None:
    computed = []
    for runs_ahead in (False, True):
        core = simulated_core(200, runs_ahead=runs_ahead)
        plans: list[StepPlan] = []
        read = late(core).read

        def watched(plan: StepPlan, read=read, plans=plans):  # type: ignore[no-untyped-def]
            plans.append(plan)
            return read(plan)

        core._runner.read = watched  # type: ignore[attr-defined]
        for index in range(4):
            prompt = prompt_that_goes_on(5 + index, 10)
            core.submit(make_request(str(index), prompt, 10, cache=False))
        run_to_end(core)
        computed.append([plan.num_tokens for plan in plans])
    assert computed[0] == computed[1]
