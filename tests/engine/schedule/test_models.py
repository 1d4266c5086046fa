"""Sequences and beams of a model in few blocks: what each is alone, and what `generate()` says."""

import itertools
import random
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import BeamParams, SamplingParams
from engine.model.layers.paged_model import PagedModel
from engine.sequences.sequence import sequence_seed
from tests.engine.model.test_model import make_core, save_model
from tests.engine.schedule.test_beams_in_blocks import results, searched, steps_to_end
from tests.engine.schedule.test_forks import forked
from tests.engine.sequences.test_beam import assert_equal, generate
from tests.engine.simulated_model import EOS, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_models_sequences_equal_requests_of_their_seeds(
    tmp_path: Path, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path)
    core = make_core(tmp_path, num_blocks=26)
    calls: list[int] = []
    copy_pages = PagedModel.copy_pages

    def counted(model: PagedModel, copies: list[tuple[int, int]]) -> None:
        calls.append(len(copies))
        copy_pages(model, copies)

    monkeypatch.setattr(PagedModel, "copy_pages", counted)
    prompt = random_prompt(random.Random(5), 45)
    sampling = SamplingParams(
        max_tokens=24, temperature=temperature, seed=11, stop_token_ids=(EOS,)
    )
    alone = {}
    for index in range(4):
        seeded = structs.replace(sampling, seed=sequence_seed(11, index))
        core.submit(make_request("alone", prompt, sampling=seeded, cache=False))
        alone[index] = run_to_end(core)["alone"]
    assert calls == []
    core.submit(forked("r", prompt, 24, 4, sampling=sampling, cache=False))
    assert run_all_to_end(core)["r"] == alone
    assert calls == [3], "the copies of a step are one call"
    assert (len(set(map(tuple, alone.values()))) > 1) == (temperature > 0)
    for name in "xyz":
        core.submit(forked(name, prompt, 24, 4, sampling=sampling))
    assert run_all_to_end(core) == dict.fromkeys("xyz", alone)
    assert core.stats().preemptions > 0


def test_a_models_beams_equal_generate_preempted_penalised_and_beside_strangers(
    tmp_path: Path,
) -> None:
    model = save_model("llama", tmp_path)
    core = make_core(tmp_path, num_blocks=15)
    rng = random.Random(5)
    stops = tuple(range(3, 33))
    expected = {}
    options = itertools.product((2, 4), (-1.0, 0.7, 2.0), (True, False, None))
    for number, (num_beams, length_penalty, early_stopping) in enumerate(options):
        beam = BeamParams(
            num_beams=num_beams,
            num_return=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        penalty = 1.0 if number % 2 else 1.3
        sampling = SamplingParams(
            max_tokens=20, temperature=0, stop_token_ids=stops, repetition_penalty=penalty
        )
        prompt = random_prompt(rng, rng.randrange(1, 30))
        core.submit(searched(str(number), prompt, 20, beam, sampling=sampling))
        core.submit(make_request(f"stranger{number}", prompt[:9], 5))
        expected[str(number)] = generate(model, prompt, beam, stops, 20, repetition_penalty=penalty)
    found = results(d for d in steps_to_end(core) if not d.request_id.startswith("stranger"))
    assert core.stats().preemptions > 0
    for name, outputs in expected.items():
        assert_equal(found[name], outputs, stops)
