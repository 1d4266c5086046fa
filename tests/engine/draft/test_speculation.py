"""Drafts change how many tokens a step draws, and nothing else: neither tokens nor books."""

import random
from collections.abc import Sequence as Ordered
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import BeamParams, TenantShare
from engine.config import Speculation
from engine.draft.drafter import Draft, Drafter
from engine.draft.lookup import AnswerHistory, PromptLookup
from engine.draft.worth import RowCosts
from engine.sequences.plan import Sampled, StepPlan
from engine.sequences.sequence import Sequence
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.clock import Clock, with_clock
from tests.engine.draft.guesses import Seer
from tests.engine.run.test_steps import RunAheadMachine, prompt_that_goes_on, prompt_that_stops
from tests.engine.schedule.test_any_order import (
    ManyKindsSchedulerMachine,
    SchedulerMachine,
    StatesBesideWindowsSchedulerMachine,
    StatesSchedulerMachine,
)
from tests.engine.simulated_model import EOS, expected_hypotheses, expected_output, random_prompt
from tests.engine.simulated_runner import LateRunner, SimulatedRunner
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core


def speculating(right: float = 1.0, **options: object) -> EngineCore:
    return simulated_core(**{"num_blocks": 200, "drafter": Seer(random.Random(0), right)} | options)


class DraftingMachine(SchedulerMachine):
    """Everything that may happen to requests, while tokens are drafted for them."""

    def make_drafter(self) -> Drafter:
        return Seer(self.rng, self.rng.random())


class DraftingAheadMachine(RunAheadMachine):
    """The same, while steps are under way."""

    def make_drafter(self) -> Drafter:
        return Seer(self.rng, self.rng.random())


class DraftingManyKindsMachine(DraftingMachine):
    """The same where layers forget, each kind in its own way."""

    kinds = ManyKindsSchedulerMachine.kinds


class DraftingStatesMachine(DraftingMachine):
    """The same where layers keep a state, which drafts may spoil."""

    kinds = StatesBesideWindowsSchedulerMachine.kinds


class DraftingStatesAheadMachine(DraftingAheadMachine):
    """The same, while steps are under way."""

    kinds = StatesSchedulerMachine.kinds


TestDraftingMachine = DraftingMachine.TestCase
TestDraftingStatesMachine = DraftingStatesMachine.TestCase
TestDraftingStatesMachine.settings = settings(max_examples=scaled(60), stateful_step_count=50)
TestDraftingStatesAheadMachine = DraftingStatesAheadMachine.TestCase
TestDraftingStatesAheadMachine.settings = settings(max_examples=scaled(60), stateful_step_count=50)
TestDraftingManyKindsMachine = DraftingManyKindsMachine.TestCase
TestDraftingManyKindsMachine.settings = settings(max_examples=scaled(20), stateful_step_count=50)
TestDraftingMachine.settings = settings(max_examples=scaled(60), stateful_step_count=50)
TestDraftingAheadMachine = DraftingAheadMachine.TestCase
TestDraftingAheadMachine.settings = settings(max_examples=scaled(60), stateful_step_count=50)


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_the_output_is_the_same_however_many_guesses_are_right(
    right: float, runs_ahead: bool
) -> None:
    prompts = {str(i): prompt_that_goes_on(5 + i, 60) for i in range(3)}
    core = speculating(right, runs_ahead=runs_ahead)
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 60))
    assert run_to_end(core) == {name: expected_output(p, 60) for name, p in prompts.items()}
    stats = core.stats()
    if right == 0:
        assert stats.accepted_tokens == 0
    else:
        assert 0 < stats.accepted_tokens <= stats.drafted_tokens
        assert stats.steps < 60
    assert stats.output_tokens == 180


@pytest.mark.parametrize("at", range(1, 12))
def test_a_stop_token_within_a_draft_is_the_last_one(at: int) -> None:
    prompt = prompt_that_stops(at)
    core = speculating()
    core.submit(make_request("r", prompt, 60))
    output: list[int] = []
    reasons = []
    while not core.is_idle:
        for delta in core.step():
            output += delta.token_ids
            reasons.append(delta.finish_reason)
        core.scheduler.check()
    assert output == expected_output(prompt, 60)
    assert output[-1] == EOS
    assert reasons[-1] == "stop"
    assert core.stats().output_tokens == at


@pytest.mark.parametrize("most", range(1, 9))
def test_no_more_tokens_come_than_were_asked_for_and_none_is_drafted_behind_them(most: int) -> None:
    prompt = prompt_that_goes_on(6, most)
    core = speculating()
    core.submit(make_request("r", prompt, most))
    assert run_to_end(core)["r"] == expected_output(prompt, most)
    assert core.stats().drafted_tokens < most


def test_blocks_of_wrong_guesses_are_free_after_the_step() -> None:
    core = speculating(right=0.0, block_size=2)
    core.submit(make_request("r", prompt_that_goes_on(5, 40), 40, cache=False))
    core.step()
    (sequence,) = core.scheduler.running["r"].sequences
    most = 0
    while not core.is_idle:
        plan = core.scheduler.plan()
        most = max(most, len(sequence.table.blocks) - -(-sequence.num_tokens // 2))
        core.scheduler.commit(plan, core._runner.execute(plan))
        assert len(sequence.table.blocks) <= -(-sequence.num_tokens // 2)
    assert most > 1, "drafts had blocks of their own"
    assert core.stats().blocks_in_use == 0


def test_a_tokens_block_is_found_by_others_only_as_far_as_guesses_were_right() -> None:
    for right in (0.0, 0.5, 1.0):
        core = speculating(right)
        prompt = prompt_that_goes_on(10, 30)
        core.submit(make_request("one", prompt, 30))
        whole = prompt + run_to_end(core)["one"]
        core.submit(make_request("two", [*whole, 5], 4))
        assert run_to_end(core)["two"] == expected_output([*whole, 5], 4)


def test_nobody_is_preempted_for_a_guess() -> None:
    core = speculating(num_blocks=12, block_size=4)
    for name in "ab":
        core.submit(make_request(name, prompt_that_goes_on(11, 12), 12, tenant=name, cache=False))
    run_to_end(core)
    assert core.stats().preemptions == 0
    assert core.stats().accepted_tokens > 0


def test_guesses_stay_within_the_tenants_limit() -> None:
    share = TenantShare(max_blocks=8)
    core = speculating(block_size=4)
    for name in "ab":
        core.submit(make_request(name, prompt_that_goes_on(6, 9), 9, share=share, cache=False))
    most = 0
    while not core.is_idle:
        plan = core.scheduler.plan()
        most = max(most, len(core.scheduler.accounts["a"].held))
        core.scheduler.commit(plan, core._runner.execute(plan))
        core.scheduler.check()
    assert most <= 8


def test_a_full_batch_leaves_no_row_to_guesses() -> None:
    plans: list[StepPlan] = []
    core = speculating(max_running_requests=4, step_token_budget=64)
    runner = cast("SimulatedRunner", core._runner)
    execute = runner.execute
    runner.execute = lambda plan: plans.append(plan) or execute(plan)  # type: ignore[func-returns-value, method-assign]
    for index in range(4):
        out = 10 if index else 30
        core.submit(make_request(str(index), prompt_that_goes_on(4, out), out))
    run_to_end(core)
    for plan in plans:
        decoding = [chunk for chunk in plan.chunks if chunk.samplers and chunk.start >= 4]
        assert sum(chunk.num_rows for chunk in decoding) <= 4
    assert any(chunk.drafts for plan in plans for chunk in plan.chunks)


def test_guesses_that_cost_more_than_they_save_are_not_made() -> None:
    steep = RowCosts(((1, 1.0), (2, 2.0)))
    core = speculating(row_costs=steep)
    core.submit(make_request("r", prompt_that_goes_on(5, 30), 30))
    run_to_end(core)
    assert core.stats().drafted_tokens == 0


def test_a_drafter_that_is_never_right_is_hardly_asked_to_prove_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slightly = RowCosts(((1, 1.0), (2, 1.1)))
    core = speculating(right=0.0, row_costs=slightly)
    with_clock(core, monkeypatch, decoding=1.0, draft=0.1)
    core.submit(make_request("r", prompt_that_goes_on(5, 400), 400))
    drafted = []
    while not core.is_idle:
        core.step()
        drafted.append(core.stats().drafted_tokens)
    assert drafted[-1] < 60
    assert drafted[-1] - drafted[len(drafted) // 2] < 10


class Searcher(Seer):
    """Takes a fiftieth of a step to find out that there is nothing, until it knows the answers."""

    def __init__(self) -> None:
        super().__init__(random.Random(4), right=1.0)
        self.clock: Clock | None = None
        self.knows = False
        self.num_looks = 0

    def propose(self, wanted: Ordered[tuple[Sequence, int]], seconds: float, /) -> list[Draft]:
        self.num_looks += 1
        assert self.clock is not None
        self.clock.now += 0.02
        return super().propose(wanted, seconds) if self.knows else [Draft()] * len(wanted)


def test_looks_in_vain_are_few_until_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = Searcher()
    core = simulated_core(200, drafter=searcher, row_costs=RowCosts(((1, 1.0), (2, 1.1))))
    searcher.clock = with_clock(core, monkeypatch, decoding=1.0, draft=0.1)
    core.submit(make_request("r", prompt_that_goes_on(5, 600), 600))
    for _ in range(400):
        core.step()
    # What is there at the start pays for three of them, and then each step for a quarter.
    assert 3 <= searcher.num_looks <= 3 + 400 // 4
    searcher.knows = True
    while not core.stats().accepted_tokens:
        core.step()
    assert core.stats().steps < 410
    searcher.knows, before = False, searcher.num_looks
    for _ in range(10):
        core.step()
    assert searcher.num_looks == before + 10, "drafts have gained what these cost"


@pytest.mark.parametrize("speculation", ["off", "lookup"])
def test_steps_are_launched_ahead_where_there_is_nothing_to_guess(speculation: Speculation) -> None:
    core = simulated_core(200, speculation=speculation, runs_ahead=True)
    core.submit(make_request("r", prompt_that_goes_on(5, 200), 200))
    run_to_end(core)
    launches = cast("LateRunner", core._runner).launches
    assert launches[1:-1] == [1] * (len(launches) - 2)
    assert core.stats().drafted_tokens == 0


def test_a_batch_in_which_guesses_cannot_pay_is_launched_ahead_as_without() -> None:
    """All of it repeats what has been answered before."""
    launches = []
    for speculation in ("off", "lookup"):
        steep = RowCosts(((1, 1.0), (2, 2.0)))
        core = simulated_core(300, speculation=speculation, runs_ahead=True, row_costs=steep)
        for _ in range(2):
            for index in range(8):
                prompt = prompt_that_goes_on(5 + index, 40)
                core.submit(make_request(str(index), prompt, 40, cache=True))
            run_to_end(core)
        launches.append(cast("LateRunner", core._runner).launches)
        assert core.stats().drafted_tokens == 0
    assert launches[0] == launches[1]


def test_beams_are_searched_without_guesses() -> None:
    beam = BeamParams(num_beams=3)
    core = speculating()
    prompt = random_prompt(random.Random(3), 9)
    core.submit(make_request("r", prompt, 12, beam=beam))
    expected = expected_hypotheses(prompt, 12, beam)[0].token_ids
    assert run_all_to_end(core)["r"][0] == expected
    assert core.stats().drafted_tokens == 0


def test_several_sequences_have_their_own_guesses() -> None:
    core = speculating(right=0.7)
    prompt = prompt_that_goes_on(6, 20, count=3)
    core.submit(make_request("r", prompt, 20, num_sequences=3))
    expected = {index: expected_output(prompt, 20, index) for index in range(3)}
    assert run_all_to_end(core)["r"] == expected
    assert core.stats().accepted_tokens > 0


def test_what_outgrows_its_kv_is_computed_again_and_not_guessed_across() -> None:
    core = speculating(rotary_switch=30)
    prompt = prompt_that_goes_on(12, 40)
    core.submit(make_request("r", prompt, 40))
    assert run_to_end(core)["r"] == expected_output(prompt, 40)
    assert core.stats().accepted_tokens > 0
    assert core.stats().preemptions == 1


@given(cut=st.integers(0, 20), seed=st.integers(0, 1000))
@settings(max_examples=scaled(30))
def test_a_stream_that_lost_its_engine_goes_on_the_same(cut: int, seed: int) -> None:
    prompt = prompt_that_goes_on(6, 21)
    whole = expected_output(prompt, 21)
    core = simulated_core(drafter=Seer(random.Random(seed), 0.7))
    core.submit(make_request("r", prompt, 21, generated=[whole[:cut]], cached_tokens=0))
    assert run_to_end(core)["r"] == whole[cut:]


def test_the_drafter_is_told_of_ends_and_of_tenants_that_go() -> None:
    seer = Seer(random.Random(1), 1.0)
    core = simulated_core(drafter=seer)
    core.submit(make_request("done", prompt_that_goes_on(4, 3), 3))
    run_to_end(core)
    core.submit(make_request("aborted", [4, 5], 30))
    core.step()
    core.abort("aborted")
    assert [sequence.request_id for sequence in seer.over] == ["done", "aborted"]
    core.scheduler.forget_tenant("a")
    assert seer.forgotten == ["a"]


def test_the_drafter_is_told_of_what_fails() -> None:
    seer = Seer(random.Random(1), 1.0)
    core = simulated_core(drafter=seer)
    execute = core._runner.execute

    def failing(plan: StepPlan) -> Sampled:
        raise RuntimeError("a step fails")

    core.submit(make_request("failed", prompt_that_goes_on(4, 30), 30))
    core.step()
    core._runner.execute = failing  # type: ignore[method-assign]
    assert [delta.finish_reason for delta in core.step()] == ["error"]
    core._runner.execute = execute  # type: ignore[method-assign]
    core.submit(make_request("without room", prompt_that_goes_on(40, 30), 30, cache=False))
    core.step()
    core.scheduler.pool.reserve("others", 64)
    while not core.is_idle:
        core.step()
    assert [sequence.request_id for sequence in seer.over] == ["failed", "without room"]


def test_of_a_search_that_is_aborted_nothing_is_drafted_from() -> None:
    history = AnswerHistory()
    core = simulated_core(drafter=PromptLookup(history))
    beam = BeamParams(num_beams=3, num_return=3)
    core.submit(make_request("r", random_prompt(random.Random(3), 9), 30, beam=beam))
    for _ in range(4):
        core.step()
    core.abort("r")
    assert history.num_tokens == 0
