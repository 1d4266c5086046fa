"""Held to a grammar, a model says what `generate()` says with filtered scores, in every mode."""

import random
import re
from pathlib import Path

import pytest
from msgspec import structs
from transformers import PreTrainedModel

from engine.api import EngineRequest, Grammar, SamplingParams
from engine.assembly.parts import Parts
from engine.serve.core import EngineCore
from tests.engine.draft.test_models import Hindsight, Outputs, answers
from tests.engine.grammar.constrained import (
    GRAMMARS,
    PICK,
    VOCAB,
    constraining,
    filtered,
    save,
    start,
    text,
)
from tests.engine.model.test_model import generate
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import EOS, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end

COUNT = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("constrained")
    return folder, save(folder)


@pytest.fixture(scope="module")
def work(
    model: tuple[Path, PreTrainedModel],
) -> tuple[list[EngineRequest], dict[str, list[int]]]:
    """Requests that begin alike, with grammars and without, and what they are answered."""
    folder, reference = model
    parts = load(folder, num_blocks=8)
    assert parts.vocabulary is not None
    rng = random.Random(7)
    head = random_prompt(rng, 50)
    requests: list[EngineRequest] = []
    expected: dict[str, list[int]] = {}
    grammars: list[Grammar | None] = [*GRAMMARS, None, PICK, None]
    for number, grammar in enumerate(grammars):
        name, prompt = str(number), head + random_prompt(rng, rng.randrange(1, 30))
        requests.append(make_request(name, prompt, COUNT, grammar=grammar))
        if grammar is None:
            expected[name] = generate(reference, prompt, COUNT)
        else:
            expected[name] = filtered(reference, prompt, COUNT, grammar, parts.vocabulary)
    return requests, expected


def parts_of(model: tuple[Path, PreTrainedModel], **room: int) -> Parts:
    return load(model[0], **room)


def test_cold_cached_beside_strangers_and_preempted(
    model: tuple[Path, PreTrainedModel],
    work: tuple[list[EngineRequest], dict[str, list[int]]],
) -> None:
    requests, expected = work
    ended = [output for name, output in expected.items() if requests[int(name)].grammar]
    assert any(output[-1] == EOS for output in ended)
    for slots in (0, 30):
        core = constraining(parts_of(model, num_blocks=24, num_host_blocks=slots))
        for attempt in ("cold", "cached"):
            start(core, requests)
            assert run_to_end(core) == expected, attempt
        stats = core.stats()
        assert stats.preemptions > 0, "the pool was meant to be too small"
        assert bool(stats.swapped_in) == bool(slots)
        assert stats.blocks_in_use == 0


@pytest.mark.parametrize("is_recorded", [False, True])
def test_steps_launched_ahead_wait_for_their_masks_alone(
    model: tuple[Path, PreTrainedModel],
    work: tuple[list[EngineRequest], dict[str, list[int]]],
    is_recorded: bool,
) -> None:
    requests, expected = work
    core = constraining(parts_of(model, num_blocks=40), runs_ahead=True, is_recorded=is_recorded)
    start(core, requests)
    assert run_to_end(core) == expected


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_each_guess_is_verified_against_a_mask_of_its_own(
    model: tuple[Path, PreTrainedModel],
    work: tuple[list[EngineRequest], dict[str, list[int]]],
    runs_ahead: bool,
) -> None:
    requests, expected = work
    drafter = Hindsight({name: {0: output} for name, output in expected.items()}, VOCAB)
    core = constraining(parts_of(model, num_blocks=60), runs_ahead=runs_ahead, drafter=drafter)
    start(core, requests)
    assert run_to_end(core) == expected
    assert 0 < core.stats().accepted_tokens < core.stats().drafted_tokens


@pytest.mark.parametrize("penalty", [0.7, 1.4])
def test_penalties_come_before_the_mask(
    model: tuple[Path, PreTrainedModel], penalty: float
) -> None:
    folder, reference = model
    parts = load(folder, num_blocks=60)
    assert parts.vocabulary is not None
    rng, requests, expected = random.Random(11), list[EngineRequest](), dict[str, list[int]]()
    for number, grammar in enumerate(GRAMMARS):
        name, prompt = str(number), random_prompt(rng, 20)
        request = make_request(name, prompt, COUNT, grammar=grammar)
        sampling = structs.replace(request.sampling, repetition_penalty=penalty)
        requests.append(structs.replace(request, sampling=sampling))
        options = {"repetition_penalty": penalty}
        expected[name] = filtered(reference, prompt, COUNT, grammar, parts.vocabulary, **options)
    for runs_ahead in (False, True):
        core = constraining(parts, runs_ahead=runs_ahead)
        start(core, requests)
        assert run_to_end(core) == expected


def sampled_requests() -> list[EngineRequest]:
    """Several lines each, with penalties, a bias, cuts, and log-probabilities."""
    rng = random.Random(3)
    params = SamplingParams(max_tokens=COUNT, temperature=1.5, seed=9, stop_token_ids=(EOS,))
    options: list[dict[str, object]] = [
        {"top_p": 0.95, "presence_penalty": 1.0, "logprobs": 2},
        {"repetition_penalty": 1.3, "logit_bias": {EOS: 100.0, 300: 5.0}},
        {"top_k": 50, "frequency_penalty": 0.7},
    ]
    return [
        make_request(
            str(number),
            random_prompt(rng, 20 + number),
            num_sequences=3,
            grammar=GRAMMARS[number],
            sampling=structs.replace(params, **chosen),
        )
        for number, chosen in enumerate(options)
    ]


def drawn(core: EngineCore, requests: list[EngineRequest]) -> Outputs:
    start(core, requests)
    return run_all_to_end(core)


def test_draws_do_not_depend_on_batch_mates_guesses_or_the_order_of_steps(
    model: tuple[Path, PreTrainedModel],
) -> None:
    parts, requests = parts_of(model, num_blocks=120), sampled_requests()
    expected: Outputs = {}
    for request in requests:
        expected |= drawn(constraining(parts), [request])
    assert drawn(constraining(parts), requests) == expected
    assert drawn(constraining(parts, runs_ahead=True), requests) == expected
    hindsight = Hindsight(expected, VOCAB)
    assert drawn(constraining(parts, drafter=hindsight), requests) == expected
    small = parts_of(model, num_blocks=14, num_host_blocks=20)
    for runs_ahead in (False, True):
        core = constraining(small, runs_ahead=runs_ahead, is_held=True)
        assert drawn(core, requests) == expected
        assert core.stats().preemptions > 0, "the pool was meant to be too small"
    assert len({tuple(line) for line in expected["0"].values()}) > 1
    assert parts.vocabulary is not None
    for line in expected["0"].values():
        assert re.fullmatch(PICK.source, text(line, parts.vocabulary))


def test_log_probabilities_are_those_of_the_model_before_the_mask(
    model: tuple[Path, PreTrainedModel],
) -> None:
    request = make_request("r", random_prompt(random.Random(1), 20), 1)
    request = structs.replace(request, sampling=structs.replace(request.sampling, logprobs=3))
    free = constraining(parts_of(model, num_blocks=40))
    held = constraining(parts_of(model, num_blocks=40))
    _, plain = answers(free, [request])
    tokens, masked = answers(held, [structs.replace(request, grammar=PICK)])
    assert masked["r"][0].top == plain["r"][0].top
    assert masked["r"][0].logprob < plain["r"][0].logprob
    assert tokens["r"][0] != [plain["r"][0].top[0][0]]


@pytest.mark.parametrize("cut", [1, 5, 7])
def test_a_resumed_answer_goes_on_as_if_it_had_never_stopped(
    model: tuple[Path, PreTrainedModel], cut: int
) -> None:
    parts = parts_of(model, num_blocks=120)
    (request, *_) = sampled_requests()
    whole = drawn(constraining(parts), [request])["0"]
    assert min(map(len, whole.values())) >= cut, "or nothing is left to be said"
    begun = [whole[index][:cut] for index in range(3)]
    ended = tuple(index for index in range(3) if begun[index] == whole[index])
    again = structs.replace(request, generated=begun, ended=ended, cached_tokens=0)
    rest = drawn(constraining(parts), [again])["0"]
    assert {index: begun[index] + rest.get(index, []) for index in whole} == whole


def test_an_answer_is_cut_where_its_budget_ends(model: tuple[Path, PreTrainedModel]) -> None:
    core = constraining(parts_of(model, num_blocks=40))
    core.submit(make_request("r", random_prompt(random.Random(1), 20), 3, grammar=PICK))
    deltas = []
    while not core.is_idle:
        deltas += core.step()
    assert deltas[-1].finish_reason == "length"
