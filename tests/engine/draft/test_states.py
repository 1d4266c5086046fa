"""Drafts for layers that keep a state: what `generate()` says, and books that balance."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import PreTrainedModel

from engine.api import Kind
from engine.assembly.assemble import load_core
from engine.assembly.parts import load_parts
from engine.config import EngineConfig
from engine.draft.drafter import Draft, Drafter
from engine.draft.lookup import PromptLookup
from engine.draft.worth import RowCosts
from engine.run.runner import AheadRunner, ModelRunner
from engine.sequences.plan import ScheduledChunk
from engine.sequences.sequence import Sequence
from engine.serve.core import EngineCore
from tests.engine.clock import with_clock
from tests.engine.draft.guesses import Seer
from tests.engine.draft.test_models import Hindsight, answers
from tests.engine.model.states import config_of, saved
from tests.engine.model.test_model import STATES, generate, save_model
from tests.engine.run.test_batch_invariance import sampled_requests
from tests.engine.run.test_steps import prompt_that_goes_on
from tests.engine.schedule.test_forks import forked
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core

KINDS = (Kind(), Kind(pages=3, is_state=True))
SERVED = (*STATES, "granitemoehybrid", "qwen3_5_text")
OTHERS = ("bamba", "falcon_h1", "jamba", "kimi_linear", "lfm2_moe", "olmo_hybrid")
OTHERS += ("qwen3_5_moe_text",)


def drafting(
    config: EngineConfig, drafter: Drafter | None, kind: type[ModelRunner] = ModelRunner
) -> EngineCore:
    """An engine to which all guesses that find room are worth it."""
    parts = load_parts(config)
    costs = parts.costs if parts.info.num_host_blocks else None
    runner = kind(parts.model, costs)
    return EngineCore(parts.config, parts.info, runner, parts.costs, drafter=drafter)


def asked_again(core: EngineCore, model: PreTrainedModel) -> None:
    """Four chats behind one beginning, whose turns quote what was said: some of it is said again,
    and some is not, as in answers to prompts that were asked before and are a little longer now.
    """
    rng = random.Random(7)
    head = random_prompt(rng, 30)
    said = {str(chat): head + random_prompt(rng, rng.randrange(1, 20)) for chat in range(3)}
    for _ in range(2):
        for name, prompt in said.items():
            core.submit(make_request(name, prompt, max_tokens=24))
        found = run_to_end(core)
        assert found == {name: generate(model, prompt, 24) for name, prompt in said.items()}
        for name, answer in found.items():
            said[name] += [*answer, *said[name][-5:], *answer[:9]]
    stats = core.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.cached_tokens > 0


@pytest.mark.parametrize(
    "family", [*SERVED, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in OTHERS)]
)
def test_what_is_looked_up_changes_no_token(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    asked_again(drafting(config_of(tmp_path, 400, 60), PromptLookup()), model)


@pytest.mark.parametrize("kind", [ModelRunner, AheadRunner])
@pytest.mark.parametrize("family", SERVED)
def test_some_of_a_draft_may_be_right(family: str, kind: type[ModelRunner], tmp_path: Path) -> None:
    model, rng = saved(family, tmp_path), random.Random(7)
    head = random_prompt(rng, 60)
    prompts = {str(one): head + random_prompt(rng, rng.randrange(1, 40)) for one in range(4)}
    expected = {name: generate(model, prompt, 40) for name, prompt in prompts.items()}
    hindsight = Hindsight({name: {0: output} for name, output in expected.items()}, 1000)
    core = drafting(config_of(tmp_path, 400, 60), hindsight, kind)
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, max_tokens=40))
    assert run_to_end(core) == expected
    stats = core.stats()
    assert 40 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.steps < 36


@pytest.mark.parametrize("recovery", ["swap", "recompute"])
def test_forks_come_back_from_preemption_in_the_middle_of_drafts(
    recovery: str, tmp_path: Path
) -> None:
    model = saved("qwen3_next", tmp_path)
    prompts = {str(seed): random_prompt(random.Random(seed), 45) for seed in range(3)}
    expected = {name: generate(model, prompt, 24) for name, prompt in prompts.items()}
    both = {name: dict.fromkeys(range(2), output) for name, output in expected.items()}
    config = config_of(
        tmp_path, 40, 14, recovery=recovery, min_run_tokens=1, host_memory_bytes=1 << 20
    )
    for preempt_after in range(4, 10):
        core = drafting(config, Hindsight(both, 1000))
        for name, prompt in prompts.items():
            core.submit(forked(name, prompt, 24, 2))
        assert run_all_to_end(core, preempt_after=preempt_after) == both
        stats = core.stats()
        assert stats.preemptions > 0 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.parametrize("kind", [ModelRunner, AheadRunner])
def test_sampled_tokens_are_those_of_single_steps(kind: type[ModelRunner], tmp_path: Path) -> None:
    saved("nemotron_h", tmp_path)
    config, requests = config_of(tmp_path, 120, 40), sampled_requests()
    plain, _ = answers(drafting(config, None, kind), requests)
    core = drafting(config, Hindsight(plain, 1000), kind)
    assert answers(core, requests)[0] == plain
    assert 20 < core.stats().accepted_tokens < core.stats().drafted_tokens


def test_an_engine_guesses_for_such_a_model_where_it_pays(tmp_path: Path) -> None:
    model = saved("lfm2", tmp_path / "hybrid")
    save_model("llama", tmp_path / "dense")
    config = config_of(tmp_path / "hybrid", 400, 60)
    model_too = {"speculation": "draft", "draft_model_path": str(tmp_path / "dense")}
    prompt = random_prompt(random.Random(3), 45)
    for fields in ({"speculation": "lookup"}, model_too):
        core = load_core(msgspec.structs.replace(config, **fields))
        assert core.scheduler.speculation is not None
        core.submit(make_request("one", prompt, 24))
        assert run_to_end(core)["one"] == generate(model, prompt, 24)


def simulated(right: float, num_blocks: int = 200, **options: Any) -> EngineCore:
    drafter = Seer(random.Random(0), right)
    return simulated_core(num_blocks, kinds=KINDS, drafter=drafter, **options)


@pytest.mark.parametrize("right", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("num_output", range(5, 13))
def test_a_next_turn_goes_on_where_it_would_without_drafts(right: float, num_output: int) -> None:
    prompt, hits = prompt_that_goes_on(18, 30), list[int]()
    for core in (simulated(right), simulated_core(200, kinds=KINDS)):
        core.submit(make_request("first", prompt, num_output))
        answer = run_to_end(core)["first"]
        assert answer == expected_output(prompt, num_output)
        core.submit(make_request("second", [*prompt, *answer, 5, 6, 7], 4))
        before = core.stats().cached_tokens
        run_to_end(core)
        hits.append(core.stats().cached_tokens - before)
    assert hits[0] == hits[1] > 0


def computed(core: EngineCore, prompt: list[int], num_output: int) -> list[ScheduledChunk]:
    """The chunks of a request that decodes."""
    core.submit(make_request("r", prompt, num_output))
    chunks = []
    while not core.is_idle:
        plan = core.scheduler.plan()
        chunks += plan.chunks[: plan.num_decoding]
        core.scheduler.commit(plan, core._runner.execute(plan))
        core.scheduler.check()
    return chunks


def test_right_drafts_are_computed_once_if_all_are_right_or_their_block_is_full() -> None:
    chunks = computed(simulated(1.0), prompt_that_goes_on(6, 60), 60)
    assert sum(len(chunk.drafts) for chunk in chunks) > 20
    assert {chunk.count for chunk in chunks} == {1}


def test_what_is_computed_again_is_less_than_a_block() -> None:
    chunks = computed(simulated(0.7), prompt_that_goes_on(6, 200), 200)
    assert {chunk.count for chunk in chunks} == {1, 2, 3, 4}


def test_a_wrong_first_guess_costs_no_more_than_its_rows() -> None:
    chunks = computed(simulated(0.0), prompt_that_goes_on(6, 60), 60)
    assert sum(len(chunk.drafts) for chunk in chunks) > 20
    assert {chunk.count for chunk in chunks} == {1}


def test_a_sequence_holds_the_states_of_drafts_for_a_step() -> None:
    core, held = simulated(0.7), Counter[bool]()
    core.submit(make_request("r", prompt_that_goes_on(6, 60), 60))
    while not core.is_idle:
        plan = core.scheduler.plan()
        tables = [chunk.sequence.table for chunk in plan.chunks[: plan.num_decoding]]
        for chunk, table in zip(plan.chunks, tables, strict=False):
            held[bool(chunk.drafts)] += 1
            assert bool(table.held.beside) == bool(chunk.drafts)
        core.scheduler.commit(plan, core._runner.execute(plan))
        assert not any(table.held.beside for table in tables)
        core.scheduler.check()
    assert held[True] > 5
    assert held[False] > 5


def test_steps_stay_within_their_budget_with_what_is_computed_again() -> None:
    core, again = simulated(0.9, block_size=32, step_token_budget=8, max_running_requests=8), 0
    core.submit(make_request("long", prompt_that_goes_on(5, 400), 400))
    steps = count()
    while not core.is_idle:
        number = next(steps)
        if number % 5 == 0 and number < 100:  # four lines decode behind one prompt's last token
            core.submit(make_request(str(number), [number, *range(7)], 2, num_sequences=4))
        plan = core.scheduler.plan()
        assert plan.num_tokens <= 8
        again += sum(chunk.count - 1 for chunk in plan.chunks[: plan.num_decoding])
        core.scheduler.commit(plan, core._runner.execute(plan))
    assert again > 5


def test_nobody_is_preempted_for_the_state_of_a_guess() -> None:
    lengths = {"a": 9, "b": 14}
    for num_blocks in range(8, 30):
        core = simulated(0.9, num_blocks=num_blocks)
        plain = simulated_core(num_blocks, kinds=KINDS)
        for name, length in lengths.items():
            request = make_request(name, prompt_that_goes_on(length, 20), 20)
            core.submit(request)
            plain.submit(request)
        assert run_to_end(core) == run_to_end(plain)
        assert core.stats().preemptions <= plain.stats().preemptions


class FirstOnly(Seer):
    """Two guesses, of which the first one is right."""

    def __init__(self) -> None:
        super().__init__(random.Random(0), right=1.0)

    def _draft(self, sequence: Sequence, count: int) -> Draft:
        draft = super()._draft(sequence, min(count, 2))
        wrong = tuple(token ^ 1 for token in draft.token_ids[1:])
        return replace(draft, token_ids=draft.token_ids[:1] + wrong)


def test_rows_that_are_computed_again_count_as_what_drafts_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafted = []
    for kinds in (KINDS[:1], KINDS):
        core = simulated_core(
            400, kinds=kinds, drafter=FirstOnly(), row_costs=RowCosts(((1, 1.0), (2, 1.1)))
        )
        with_clock(core, monkeypatch, decoding=1.0, draft=0.3)
        core.submit(make_request("r", prompt_that_goes_on(5, 600), 600))
        run_to_end(core)
        drafted.append(core.stats().drafted_tokens)
    assert drafted[1] < drafted[0]
