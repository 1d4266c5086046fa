"""A model that guesses keeps up with sequences in blocks of its own, and decides nothing."""

import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from engine.api import StepOutOfMemory
from engine.draft.drafter import Drafter, LookupFirst
from engine.draft.lookup import PromptLookup
from engine.draft_model.drafter import DraftModel
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.draft.small_models import draft_model
from tests.engine.run.test_steps import RunAheadMachine, prompt_that_goes_on, prompt_that_stops
from tests.engine.schedule.test_any_order import SchedulerMachine
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, simulated_core


def guessing(drafter: Drafter, **options: object) -> EngineCore:
    return simulated_core(**{"num_blocks": 200, "drafter": drafter} | options)


def answers(core: EngineCore, model: DraftModel) -> dict[str, dict[int, list[int]]]:
    """What comes of all requests; both books are checked after every step."""
    outputs: dict[str, dict[int, list[int]]] = {}
    while not core.is_idle:
        for delta in core.step():
            assert delta.error is None
            own = outputs.setdefault(delta.request_id, {})
            own.setdefault(delta.index, []).extend(delta.token_ids)
        core.scheduler.check()
        model.check()
    return outputs


class Drafting:
    """A draft model beside the pool of a machine, which has a pool of any size itself."""

    rng: random.Random
    num_blocks: int

    def make_drafter(self) -> Drafter:
        self.model, _ = draft_model(
            self.rng.random(),
            self.rng.randint(1, 2 * self.num_blocks),
            step_token_budget=self.rng.randint(1, 40),
            seed=self.rng.randrange(1000),
            max_context_tokens=self.rng.randint(8, 4 * self.num_blocks),
        )
        return LookupFirst(PromptLookup(), self.model) if self.rng.random() < 0.5 else self.model

    @invariant()
    def its_books_balance(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        super().teardown()  # type: ignore[misc]
        if hasattr(self, "model"):
            assert self.model._pool.num_in_use == 0, "what has ended holds nothing"


class DraftModelMachine(Drafting, SchedulerMachine):
    """Everything that may happen to requests, while a model guesses for them."""


class DraftModelAheadMachine(Drafting, RunAheadMachine):
    """The same, while steps are under way."""


TestDraftModelMachine = DraftModelMachine.TestCase
TestDraftModelMachine.settings = settings(max_examples=scaled(20), stateful_step_count=50)
TestDraftModelAheadMachine = DraftModelAheadMachine.TestCase
TestDraftModelAheadMachine.settings = settings(max_examples=scaled(20), stateful_step_count=50)


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_the_output_is_the_same_however_often_the_model_is_right(
    right: float, runs_ahead: bool
) -> None:
    model, _ = draft_model(right)
    prompts = {str(i): prompt_that_goes_on(5 + i, 60) for i in range(3)}
    core = guessing(model, runs_ahead=runs_ahead)
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 60))
    assert answers(core, model) == {
        name: {0: expected_output(prompt, 60)} for name, prompt in prompts.items()
    }
    stats = core.stats()
    if right == 0:
        assert stats.accepted_tokens < 3, "but for luck"
    elif right == 1:
        assert stats.accepted_tokens == stats.drafted_tokens > 130
        assert stats.steps < 15
    else:
        assert 0 < stats.accepted_tokens < stats.drafted_tokens


def test_what_was_right_is_not_computed_again() -> None:
    model, runner = draft_model()
    prompt = prompt_that_goes_on(9, 60)
    core = guessing(model)
    core.submit(make_request("r", prompt, 60))
    answers(core, model)
    spans = [chunk for plan in runner.plans for chunk in plan.chunks]
    assert [chunk.start for chunk in spans] == sorted({chunk.start for chunk in spans})
    assert all(one.start + one.count == other.start for one, other in pairwise(spans))
    assert sum(chunk.count for chunk in spans) <= len(prompt) + 60


def test_a_prompt_is_computed_in_parts_while_others_are_guessed_for() -> None:
    model, runner = draft_model(step_token_budget=16)
    short, long = prompt_that_goes_on(4, 60), prompt_that_goes_on(100, 30)
    core = guessing(model, step_token_budget=128)
    core.submit(make_request("short", short, 60))
    core.step()
    core.step()
    core.submit(make_request("long", long, 30))
    outputs = answers(core, model)
    assert outputs["long"][0] == expected_output(long, 30)
    counts = [chunk.count for plan in runner.plans for chunk in plan.chunks]
    assert max(counts) == 16
    assert counts.count(16) == 6
    assert any(len(plan.chunks) == 2 for plan in runner.plans)


def test_sequences_of_a_request_share_their_prompt_and_compute_it_once() -> None:
    model, runner = draft_model()
    prompt = prompt_that_goes_on(43, 20, count=3)
    core = guessing(model)
    core.submit(make_request("r", prompt, 20, num_sequences=3))
    outputs = answers(core, model)
    assert outputs["r"] == {index: expected_output(prompt, 20, index) for index in range(3)}
    computed = sum(chunk.count for plan in runner.plans for chunk in plan.chunks)
    assert computed < 43 + 3 * 25
    assert core.stats().accepted_tokens > 30


def test_requests_do_not_share_what_is_computed_for_guesses() -> None:
    model, runner = draft_model()
    prompt = prompt_that_goes_on(40, 8)
    core = guessing(model)
    for name in "ab":
        core.submit(make_request(name, prompt, 8))
    answers(core, model)
    assert sum(chunk.start == 0 for plan in runner.plans for chunk in plan.chunks) == 2


def test_with_too_few_blocks_some_go_without_guesses() -> None:
    model, _ = draft_model(num_blocks=20)
    prompts = {str(i): prompt_that_goes_on(20 + i, 30) for i in range(4)}
    core = guessing(model)
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 30))
    outputs = answers(core, model)
    assert outputs == {name: {0: expected_output(p, 30)} for name, p in prompts.items()}
    assert core.stats().accepted_tokens > 0
    assert model._pool.peak_in_use <= 20
    assert model._pool.num_in_use == 0


def test_blocks_of_what_does_not_run_go_to_what_does() -> None:
    model, _ = draft_model(num_blocks=30)
    core = guessing(model, num_blocks=30, max_running_requests=8)
    prompts = {name: prompt_that_goes_on(30, 40) for name in "abcd"}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 40, tenant=name))
    outputs = answers(core, model)
    assert core.stats().preemptions > 0
    assert outputs == {name: {0: expected_output(p, 40)} for name, p in prompts.items()}
    assert core.stats().accepted_tokens > 60


def test_behind_its_longest_context_nothing_is_guessed() -> None:
    model, _ = draft_model(max_context_tokens=32)
    prompt = prompt_that_goes_on(10, 60)
    core = guessing(model)
    core.submit(make_request("r", prompt, 60))
    assert answers(core, model)["r"][0] == expected_output(prompt, 60)
    assert 15 <= core.stats().accepted_tokens <= 22
    assert model._pool.peak_in_use <= 8


@pytest.mark.parametrize("at", range(1, 12))
def test_nothing_is_guessed_behind_a_stop_token(at: int) -> None:
    prompt = prompt_that_stops(at)
    model, runner = draft_model()
    core = guessing(model)
    core.submit(make_request("r", prompt, 60))
    assert answers(core, model)["r"][0] == expected_output(prompt, 60)
    computed = max((c.start + c.count for plan in runner.plans for c in plan.chunks), default=0)
    assert computed < len(prompt) + at, "the stop token itself is only guessed"


def test_a_smaller_vocabulary_has_one_token_for_all_that_it_lacks() -> None:
    model, runner = draft_model(vocab_size=500)
    prompt = prompt_that_goes_on(12, 60)
    request = make_request("r", prompt, 60)
    core = guessing(model)
    core.submit(request)
    execute = runner.compute

    def small(work: object) -> Sampled:
        sampled = execute(work)  # type: ignore[arg-type]
        return Sampled([min(one, 499) for one in sampled.token_ids], sampled.logprobs)

    runner.compute = small  # type: ignore[method-assign, assignment]
    assert answers(core, model)["r"][0] == expected_output(prompt, 60)
    tokens = [t for plan in runner.plans for c in plan.chunks for t in c.sequence.token_ids]
    assert max(tokens) == 499
    assert max(prompt) > 499


def test_a_model_that_is_always_wrong_is_hardly_asked() -> None:
    model, runner = draft_model(right=0.0)
    core = guessing(model)
    core.submit(make_request("r", prompt_that_goes_on(5, 250), 250))
    model._seconds = [0.2] * 9
    model._observe = lambda *_: None  # type: ignore[method-assign]
    answers(core, model)
    assert core.stats().drafted_tokens < 60
    assert len(runner.plans) < 60


def test_a_round_that_takes_longer_than_it_can_save_is_not_computed() -> None:
    model, runner = draft_model()
    core = guessing(model)
    core.submit(make_request("r", prompt_that_goes_on(5, 50), 50))
    model._seconds = [1.1] * 9
    answers(core, model)
    assert not runner.plans, "a token takes a second"


def test_a_round_that_was_disturbed_counts_little() -> None:
    model, _ = draft_model()
    model._seconds = [0.1] * 9
    model._observe(1, 0, 1.0)
    assert model._seconds[1] < 0.2
    for _ in range(4):
        model._observe(1, 0, 0.1)
    assert model._seconds[1] < 0.11
    assert model._seconds[2:] == [0.1] * 7, "of other numbers of rows it says nothing"


def test_where_memory_lacks_for_guesses_the_step_goes_without() -> None:
    model, runner = draft_model()
    prompt = prompt_that_goes_on(9, 40)
    core = guessing(model)
    core.submit(make_request("r", prompt, 40))
    execute = runner.execute
    luck = random.Random(2)

    def lacking(plan: StepPlan) -> Sampled:
        if luck.random() < 0.3:
            raise StepOutOfMemory("no room")
        return execute(plan)

    runner.execute = lacking  # type: ignore[method-assign]
    assert answers(core, model)["r"][0] == expected_output(prompt, 40)
    assert core.stats().accepted_tokens > 0


def test_ends_and_tenants_that_go_leave_no_blocks() -> None:
    model, _ = draft_model()
    core = guessing(model)
    for name in "ab":
        core.submit(make_request(name, prompt_that_goes_on(9, 60), 60, tenant=name))
    for _ in range(2):
        core.step()
    held = model._pool.num_in_use
    core.scheduler.forget_tenant("a")
    model.check()
    assert 0 < model._pool.num_in_use < held
    core.abort("b")
    assert model._pool.num_in_use == 0
    core.step()
    core.abort("a")
    model.check()
    assert model._pool.num_in_use == 0


def test_a_stream_that_lost_its_engine_goes_on_with_guesses() -> None:
    prompt = prompt_that_goes_on(6, 40)
    whole = expected_output(prompt, 40)
    for cut in (0, 1, 17, 39):
        model, _ = draft_model(0.8)
        core = guessing(model)
        core.submit(make_request("r", prompt, 40, generated=[whole[:cut]], cached_tokens=0))
        assert answers(core, model)["r"][0] == whole[cut:]


def test_what_is_looked_up_for_sure_is_not_guessed() -> None:
    model, runner = draft_model()
    drafter = LookupFirst(PromptLookup(), model)
    history = random_prompt(random.Random(5), 40)
    core = guessing(drafter)
    core.submit(make_request("r", [*history, *history[:10]], 8))
    core.step()
    core.step()
    assert not runner.plans, "ten tokens are the same"
    core.abort("r")
    prompt = prompt_that_goes_on(12, 30)
    core.submit(make_request("new", prompt, 30))
    assert answers(core, model)["new"][0] == expected_output(prompt, 30)
    assert len(runner.plans) > 10
    assert len(drafter.priors) == len(PromptLookup().priors) + len(model.priors)
