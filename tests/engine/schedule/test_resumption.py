"""A request that goes on behind tokens which an earlier run has generated."""

import random

import pytest
from msgspec import structs

from engine.api import EngineRequest, RequestRefused, TokenDelta
from engine.validation import check_request
from tests.engine.simulated_model import EOS, expected_output, random_prompt
from tests.engine.simulation import make_request, simulated_core

STOPPING = next([n] for n in range(4, 900) if EOS in expected_output([n], 30))


def run(request: EngineRequest) -> list[TokenDelta]:
    """All deltas of `request` in an engine of its own."""
    core = simulated_core()
    check_request(request, core.info)
    deltas = core.submit(request)
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    return deltas


@pytest.mark.parametrize("prompt", [random_prompt(random.Random(1), 10), STOPPING])
def test_it_goes_on_wherever_it_was_cut_and_ends_as_if_undisturbed(prompt: list[int]) -> None:
    request = make_request("r", prompt, 30)
    whole = run(request)
    tokens = expected_output(prompt, 30)
    for cut in range(len(tokens) + 1):
        resumed = structs.replace(request, generated=[tokens[:cut]], cached_tokens=0)
        rest = run(resumed)
        assert [token for delta in rest for token in delta.token_ids] == tokens[cut:]
        assert rest[-1].finish_reason == whole[-1].finish_reason
        assert len(rest) == max(1, len(tokens) - cut)


def test_each_sequence_goes_on_where_it_was_cut_and_those_that_ended_stay_ended() -> None:
    rng = random.Random(3)
    prompt = random_prompt(rng, 10)
    outputs = [expected_output(prompt, 30, index) for index in range(5)]
    request = make_request("r", prompt, 30, num_sequences=5)
    for _ in range(50):
        cuts = [rng.randrange(len(output) + 1) for output in outputs]
        ended = tuple(sorted(rng.sample(range(5), rng.randrange(5))))
        generated = [output[:cut] for output, cut in zip(outputs, cuts, strict=True)]
        rest = run(structs.replace(request, generated=generated, ended=ended, cached_tokens=0))
        for index, output in enumerate(outputs):
            mine = [delta for delta in rest if delta.index == index]
            if index in ended:
                assert not mine
                continue
            assert [token for delta in mine for token in delta.token_ids] == output[cuts[index] :]
            assert [delta.finish_reason is None for delta in mine[:-1]] == [True] * (len(mine) - 1)
            assert mine[-1].finish_reason == ("stop" if output[-1] == EOS else "length")


def test_it_reports_what_the_first_run_found_in_the_cache() -> None:
    core = simulated_core()
    prompt = random_prompt(random.Random(2), 30)
    core.submit(make_request("warm", prompt, 0))
    core.step()
    core.submit(make_request("r", prompt, 5, generated=[[8, 9]], cached_tokens=12))
    core.submit(make_request("new", prompt, 5))
    cached = {delta.request_id: delta.cached_tokens for delta in core.step()}
    assert cached == {"r": 12, "new": 29}


def test_its_prompt_is_neither_charged_nor_counted_again() -> None:
    served = {}
    for generated in ([], expected_output([5, 6, 7], 8)[:4]):
        core = simulated_core()
        core.submit(make_request("r", [5, 6, 7], 8, generated=[generated]))
        while not core.is_idle:
            core.step()
        stats = core.stats()
        served[len(generated)] = stats.tenants["a"].served, stats.prompt_tokens, stats.output_tokens
    assert served == {0: (3 + 8 * 2, 3, 8), 4: (4 * 2, 0, 4)}


@pytest.mark.parametrize(
    "generated", [[5] * 9, [5, -1], [5, 10_000], [5, EOS, 5]], ids=["long", "-1", "vocab", "stop"]
)
def test_tokens_that_no_run_can_have_generated_are_refused(generated: list[int]) -> None:
    info = simulated_core().info
    check_request(make_request("r", [5], 8, generated=[[5, 6, EOS]]), info)
    with pytest.raises(RequestRefused) as refusal:
        check_request(make_request("r", [5], 8, generated=[generated]), info)
    assert refusal.value.param == "generated"
