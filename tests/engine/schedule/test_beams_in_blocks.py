"""Beams share blocks, fork and die, and end as if they had the engine for themselves."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.api import (
    BeamParams,
    EngineRequest,
    RequestRefused,
    SamplingParams,
    StepOutOfMemory,
    TenantShare,
    TokenDelta,
)
from engine.run.steps import Pending
from engine.sequences.beam import Hypothesis
from engine.sequences.plan import StepPlan
from engine.serve.core import EngineCore
from engine.validation import check_request
from tests.effort import scaled
from tests.engine.simulated_model import EOS, expected_hypotheses, expected_output, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core

FOUR = BeamParams(num_beams=4, num_return=4)


def searched(
    name: str, prompt: list[int], out: int, beam: BeamParams = FOUR, **fields: object
) -> EngineRequest:
    return make_request(name, prompt, out, beam=beam, **fields)


def results(deltas: Iterable[TokenDelta]) -> dict[str, list[Hypothesis]]:
    """What each request has ended with; every index must come once, in order, and be the last."""
    found: dict[str, list[Hypothesis]] = {}
    searched: dict[str, int] = {}
    for delta in deltas:
        assert delta.error is None
        assert delta.searched_tokens >= searched.get(delta.request_id, 1)
        searched[delta.request_id] = delta.searched_tokens
        if delta.finish_reason is None:
            assert not delta.token_ids, "nothing is delivered before the end"
            assert delta.request_id not in found
            continue
        assert delta.score is not None
        own = found.setdefault(delta.request_id, [])
        assert delta.index == len(own)
        own.append(Hypothesis(delta.token_ids, delta.score, delta.finish_reason))
    return found


def steps_to_end(core: EngineCore, limit: int = 5000) -> list[TokenDelta]:
    """Step until idle, checking the books after every step."""
    deltas: list[TokenDelta] = []
    for _ in range(limit):
        if core.is_idle:
            assert core.stats().blocks_in_use == 0
            return deltas
        deltas += core.step()
        core.scheduler.check()
    raise AssertionError("the engine did not finish")


def lasting_prompt(length: int, out: int, beam: BeamParams) -> list[int]:
    """A prompt whose search goes on to its last token."""
    for seed in range(1000):
        prompt = random_prompt(random.Random(seed), length)
        if all(h.finish_reason == "length" for h in expected_hypotheses(prompt, out, beam)):
            return prompt
    raise AssertionError("every search stops")


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("early_stopping", [True, False, None])
@pytest.mark.parametrize(("block_size", "prompt", "out"), [(4, 21, 20), (1, 3, 9), (16, 5, 40)])
def test_searches_that_run_together_find_what_each_would_alone(
    block_size: int, prompt: int, out: int, early_stopping: bool | None, cache: bool
) -> None:
    core = simulated_core(num_blocks=400, block_size=block_size, prefix_cache=cache)
    rng = random.Random(prompt)
    expected = {}
    for num_beams in (2, 3, 5):
        beam = BeamParams(
            num_beams=num_beams, num_return=num_beams - 1, early_stopping=early_stopping
        )
        tokens = random_prompt(rng, prompt)
        core.submit(searched(str(num_beams), tokens, out, beam))
        expected[str(num_beams)] = expected_hypotheses(tokens, out, beam)
    assert results(steps_to_end(core)) == expected


def test_the_simulated_searches_end_both_ways() -> None:
    rng = random.Random(1)
    ends = {
        hypothesis.finish_reason
        for _ in range(10)
        for hypothesis in expected_hypotheses(random_prompt(rng, 9), 8, FOUR)
    }
    assert ends == {"stop", "length"}


def test_nothing_is_delivered_before_the_end_and_every_hypothesis_counts_as_output() -> None:
    core = simulated_core(num_blocks=200)
    prompt = lasting_prompt(10, 12, FOUR)
    core.submit(searched("r", prompt, 12))
    for step in range(11):
        [progress] = core.step()
        grown = 4 * (step + 1)
        assert progress == TokenDelta(request_id="r", searched_tokens=grown, cache_write_tokens=10)
    deltas = core.step()
    assert results(deltas) == {"r": expected_hypotheses(prompt, 12, FOUR)}
    assert core.is_idle
    assert core.stats().output_tokens == 4 * 12


def test_beams_hold_far_fewer_blocks_than_they_would_without_sharing() -> None:
    """The prompt once, and of the outputs one trunk for what has a common ancestor."""
    beam = BeamParams(num_beams=6, num_return=6)
    prompt = lasting_prompt(50, 60, beam)
    core = simulated_core(num_blocks=400, step_token_budget=64)
    core.submit(searched("r", prompt, 60, beam))
    held, unshared = [], []
    while not core.is_idle:
        core.step()
        core.scheduler.check()
        for group in core.scheduler.running.values():
            if len(group.sequences) == 6:
                held.append(len(set().union(*group.blocks)))
                unshared.append(sum(map(len, group.blocks)))
                assert held[-1] == core.stats().blocks_in_use
                assert held[-1] >= 50 // 4 + 1
    assert core.stats().forks > 50, "beams were meant to fork and die"
    assert core.stats().copied_blocks > 0
    assert 1 - sum(held) / sum(unshared) > 0.6


def test_all_beams_step_together_in_one_batch_with_one_call_for_their_copies() -> None:
    core = simulated_core(num_blocks=200)
    prompt = lasting_prompt(9, 12, FOUR)
    core.submit(searched("r", prompt, 12))
    core.submit(make_request("other", random_prompt(random.Random(2), 7), 30))
    plans: list[StepPlan] = []
    execute = core._runner.execute
    core._runner.execute = lambda plan: plans.append(plan) or execute(plan)  # type: ignore[method-assign, func-returns-value]
    while "r" in core.scheduler.lifecycle.live:
        core.step()
        core.scheduler.check()
    rows = [[chunk.sequence.request_id for chunk in plan.chunks] for plan in plans]
    assert len(rows) == 12
    assert all(row.count("r") == 4 for row in rows[1:])
    assert all(row.count("other") == 1 for row in rows)
    assert len(plans[1].transfers.copies) == 3, "the last of four writes in place"


@pytest.mark.parametrize("cache", [True, False])
def test_preempted_beams_resume_as_one_share_again_and_find_the_same(cache: bool) -> None:
    core = simulated_core(
        num_blocks=36,
        step_token_budget=24,
        prefix_cache=cache,
        num_host_blocks=200,
        recovery="recompute",
        min_run_tokens=1,
    )
    prompts = {name: lasting_prompt(12 + i, 24, FOUR) for i, name in enumerate("abcde")}
    for name, prompt in prompts.items():
        core.submit(searched(name, prompt, 24))
    lifecycle = core.scheduler.lifecycle
    deltas: list[TokenDelta] = []
    preempted: set[str] = set()
    waited: set[str] = set()
    resumed = 0
    while not core.is_idle:
        deltas += core.step()
        for name, group in list(lifecycle.running.items()):
            if name in preempted:
                resumed += 1
                assert len(set.intersection(*map(set, group.blocks))) >= 12 // 4
            if group.candidates and name not in waited and name == list(lifecycle.running)[-1]:
                # Some beams are computed and wait for the others: this is when it hurts most.
                waited.add(name)
                lifecycle.recovery.policy = "swap"
                lifecycle.preempt(group)
                lifecycle.recovery.policy = "recompute"
                assert not group.candidates, "all of its beams are computed again"
        core.scheduler.check()
        preempted |= {
            name
            for name, group in lifecycle.live.items()
            if name not in lifecycle.running and len(group.sequences) == 4
        }
    assert resumed > 10
    assert waited or cache, "without cached blocks a resumed search takes more than one step"
    assert core.stats().blocks_in_use == 0
    assert results(deltas) == {
        name: expected_hypotheses(prompt, 24, FOUR) for name, prompt in prompts.items()
    }


@settings(max_examples=scaled(60))
@given(
    seed=st.integers(0, 2**32),
    prompt=st.integers(1, 24),
    out=st.integers(1, 14),
    num_beams=st.integers(2, 5),
    early_stopping=st.sampled_from([True, False, None]),
    block_size=st.sampled_from([1, 3, 4]),
    cache=st.booleans(),
    budget=st.integers(10, 20),
    others=st.integers(0, 2),
)
@example(
    seed=1,
    prompt=1,
    out=1,
    num_beams=2,
    early_stopping=True,
    block_size=1,
    cache=True,
    budget=10,
    others=1,
)
def test_the_smallest_pool_that_lets_a_search_in_serves_it_beside_others(
    seed: int,
    prompt: int,
    out: int,
    num_beams: int,
    early_stopping: bool | None,
    block_size: int,
    cache: bool,
    budget: int,
    others: int,
) -> None:
    rng = random.Random(seed)
    beam = BeamParams(num_beams=num_beams, num_return=num_beams, early_stopping=early_stopping)
    one, two = random_prompt(rng, prompt), random_prompt(rng, prompt)
    request = searched("one", one, out, beam, cache=cache)
    for num_blocks in range(1, 200):
        core = simulated_core(num_blocks, block_size, budget, 10)
        try:
            check_request(request, core.info)
        except RequestRefused:
            continue
        break
    length = min(2 * block_size, num_blocks * block_size - 3)
    if length < 1:  # a pool in which the search fits, and none of the others
        others = 0
    room = [random_prompt(rng, length) for _ in range(others)]
    for index in range(others):
        core.submit(make_request(f"other{index}", room[index], 3, tenant="b", cache=cache))
    core.submit(request)
    core.submit(searched("two", two, out, beam, cache=cache))
    deltas = steps_to_end(core)
    assert results(d for d in deltas if not d.request_id.startswith("other")) == {
        "one": expected_hypotheses(one, out, beam),
        "two": expected_hypotheses(two, out, beam),
    }
    for index in range(others):
        own = [t for d in deltas if d.request_id == f"other{index}" for t in d.token_ids]
        assert own == expected_output(room[index], 3)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_an_aborted_search_ends_every_index_and_gives_every_block_back(steps: int) -> None:
    beam = BeamParams(num_beams=4, num_return=3)
    core = simulated_core(num_blocks=100, step_token_budget=16)
    core.submit(searched("r", lasting_prompt(20, 30, beam), 30, beam))
    for _ in range(steps):
        assert not any(delta.finish_reason for delta in core.step())
    assert core.abort("r", 0) == [], "its outputs end together"
    deltas = core.abort("r")
    assert [(d.index, d.finish_reason, d.token_ids) for d in deltas] == [
        (index, "aborted", []) for index in range(3)
    ]
    core.scheduler.check()
    assert core.is_idle
    assert core.stats().blocks_in_use == 0
    assert core.abort("r") == []


def test_a_step_that_fails_ends_every_index_of_a_search_with_the_error() -> None:
    core = simulated_core(num_blocks=100)
    core.submit(searched("r", lasting_prompt(9, 12, FOUR), 12))
    for _ in range(4):
        core.step()
    execute = core._runner.execute

    def broken(plan: StepPlan) -> object:
        raise RuntimeError("no")

    core._runner.execute = broken  # type: ignore[method-assign, assignment]
    deltas = core.step()
    assert [(d.index, d.finish_reason, d.error) for d in deltas] == [
        (index, "error", "RuntimeError in the engine") for index in range(4)
    ]
    core.scheduler.check()
    assert core.stats().blocks_in_use == core.stats().blocks_cached == 0
    core._runner.execute = execute  # type: ignore[method-assign]
    core.submit(make_request("s", [5, 6], 4))
    assert run_to_end(core)["s"] == expected_output([5, 6], 4)


def test_every_row_of_every_beam_is_charged() -> None:
    core = simulated_core(num_blocks=18, step_token_budget=16)
    for name, length in (("a", 9), ("b", 10)):
        core.submit(searched(name, lasting_prompt(length, 12, FOUR), 12))
    steps_to_end(core)
    assert core.stats().preemptions > 0
    assert core.stats().tenants["a"].served == 9 + 10 + 2 * 2 * (1 + 11 * 4)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam": BeamParams(num_beams=4, length_penalty=6.0)}, "length_penalty"),
        ({"beam": BeamParams(num_beams=4, length_penalty=float("nan"))}, "length_penalty"),
        ({"sampling": SamplingParams(max_tokens=0, temperature=0)}, "max_tokens"),
        ({"sampling": SamplingParams(max_tokens=3, temperature=0, logprobs=1)}, "logprobs"),
        (
            {
                "sampling": SamplingParams(
                    max_tokens=3, temperature=0, stop_token_ids=tuple(range(994))
                )
            },
            "num_beams",
        ),
        ({"share": TenantShare(max_blocks=8)}, "max_tokens"),
    ],
)
def test_searches_that_can_never_be_served_are_refused(
    fields: dict[str, object], param: str
) -> None:
    core = simulated_core()
    request = searched("r", [5] * 6, 8)
    check_request(structs.replace(request, share=TenantShare(max_blocks=1 + 4 * 3)), core.info)
    with pytest.raises(RequestRefused) as refusal:
        check_request(structs.replace(request, **fields), core.info)
    assert refusal.value.param == param


def test_a_search_hits_the_cache_and_leaves_its_best_output_findable() -> None:
    core = simulated_core(num_blocks=200)
    prompt = lasting_prompt(16, 12, FOUR)
    core.submit(searched("r", prompt, 12))
    best = results(steps_to_end(core))["r"][0].token_ids
    assert EOS not in best
    core.submit(searched("s", prompt + best + [7], 4))
    core.step()
    assert core.scheduler.running["s"].sequences[0].first_hit == (16 + 12 - 1) // 4 * 4


def test_a_beam_waits_for_another_one_whose_last_row_is_launched_ahead() -> None:
    core = simulated_core(num_blocks=100, runs_ahead=True)
    prompt = random_prompt(random.Random(1), 9)
    beam = BeamParams(num_beams=2, num_return=2)
    core.submit(make_request("b", prompt, 12, beam=beam))
    while core.scheduler.lifecycle.live["b"].num_searched < 4:
        core.step()

    def lack_memory(_: StepPlan) -> Pending:
        raise StepOutOfMemory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core._runner, "launch", lack_memory)
        core.step()
    assert core.scheduler.budget.num_tokens == 1, "beams are computed one after the other"
    outputs = run_all_to_end(core)["b"]
    hypotheses = [hypothesis.token_ids for hypothesis in expected_hypotheses(prompt, 12, beam)]
    assert [outputs[index] for index in range(2)] == hypotheses
