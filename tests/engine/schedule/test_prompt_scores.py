"""Log-probabilities of prompts are told once each, in order, whatever comes between."""

import random

import pytest
from msgspec import structs

from engine.api import BeamParams, EngineRequest, PromptLogprobs
from engine.serve.core import EngineCore
from tests.engine.simulated_model import expected_scores, random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core


def scored_request(
    name: str, prompt: list[int], max_tokens: int = 0, **fields: object
) -> EngineRequest:
    request = make_request(name, prompt, max_tokens, **fields)
    sampling = structs.replace(request.sampling, prompt_logprobs=0)
    return structs.replace(request, sampling=sampling)


def scores_of(core: EngineCore, *requests: EngineRequest) -> dict[str, list[PromptLogprobs]]:
    """Run to the end; all scores of a prompt come before its first output."""
    scores: dict[str, list[PromptLogprobs]] = {one.request_id: [] for one in requests}
    begun: set[str] = set()
    for request in requests:
        core.submit(request)
    while not core.is_idle:
        for delta in core.step():
            assert delta.error is None
            assert not (delta.prompt_logprobs and delta.request_id in begun)
            scores[delta.request_id] += delta.prompt_logprobs
            if delta.token_ids or delta.finish_reason:
                begun.add(delta.request_id)
        core.scheduler.check()
    return scores


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_prompt_is_scored_in_chunks_beside_others(runs_ahead: bool) -> None:
    core = simulated_core(step_token_budget=10, max_running_requests=4, runs_ahead=runs_ahead)
    rng = random.Random(1)
    prompts = {
        name: random_prompt(rng, length) for name, length in {"a": 1, "b": 2, "c": 50}.items()
    }
    requests = [scored_request(name, prompt, 6) for name, prompt in prompts.items()]
    plain = make_request("d", random_prompt(rng, 30), 9)
    found = scores_of(core, *requests, plain)
    assert found == {name: expected_scores(prompts[name]) for name in "abc"} | {"d": []}


def test_what_is_cached_is_computed_again_to_be_scored_and_not_for_others() -> None:
    core, prompt = simulated_core(), random_prompt(random.Random(2), 41)
    core.submit(make_request("plain", prompt, 1))
    run_to_end(core)
    for name in ("first", "again"):
        assert scores_of(core, scored_request(name, prompt))[name] == expected_scores(prompt)
    assert core.stats().cached_tokens == 0
    assert cached_tokens(core, make_request("other", prompt, 1)) == 40
    cold = simulated_core()
    scores_of(cold, scored_request("s", prompt))
    assert cached_tokens(cold, make_request("other", prompt, 1)) == 40, "it leaves its blocks"


def test_a_step_scores_no_more_rows_than_there_is_memory_for() -> None:
    core = simulated_core(step_token_budget=64, max_running_requests=20)
    requests = [
        scored_request(name, random_prompt(random.Random(name), 50), 4) for name in ("a", "b")
    ]
    for request in requests:
        core.submit(request)
    most = 0
    while not core.is_idle:
        told = [len(delta.prompt_logprobs) for delta in core.step()]
        most = max(most, sum(told))
    assert most == 20


def test_all_lines_of_a_request_have_one_prompt() -> None:
    prompt = random_prompt(random.Random(3), 30)
    for fields in ({"num_sequences": 3}, {"beam": BeamParams(num_beams=3)}):
        core = simulated_core(step_token_budget=9, max_running_requests=9)
        found = scores_of(core, scored_request("r", prompt, 4, **fields))
        assert found["r"] == expected_scores(prompt)


def test_a_line_that_leaves_takes_no_scores_along() -> None:
    core, prompt = (
        simulated_core(step_token_budget=9, max_running_requests=9),
        random_prompt(random.Random(3), 30),
    )
    core.submit(scored_request("r", prompt, 4, num_sequences=2))
    deltas = core.step()
    core.abort("r", 0)
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    assert {delta.index for delta in deltas[1:]} == {1}
    assert [one for delta in deltas for one in delta.prompt_logprobs] == expected_scores(prompt)


def test_who_goes_on_elsewhere_is_told_the_rest() -> None:
    prompt = random_prompt(random.Random(4), 40)
    for known in (0, 1, 17, 38, 39):
        core = simulated_core()
        core.submit(make_request("plain", prompt, 1))
        run_to_end(core)
        request = scored_request("r", prompt, 4, num_scored=known)
        assert scores_of(core, request)["r"] == expected_scores(prompt)[known:]
        # A block of four tokens is found where all of its scores are known.
        assert core.stats().cached_tokens == known // 4 * 4 + (known % 4 if known < 39 else 3)


@pytest.mark.parametrize("budget", [10, 64])
def test_whoever_computes_a_prompt_may_be_aborted_before_its_scores_are_known(budget: int) -> None:
    core = simulated_core(step_token_budget=budget, max_running_requests=4, runs_ahead=True)
    request = scored_request("one", random_prompt(random.Random(3), 30), 4, num_sequences=3)
    core.submit(request)
    deltas = core.step()
    core.abort("one", 0)
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    told = [one for delta in deltas for one in delta.prompt_logprobs]
    assert told == expected_scores(request.prompt)
