"""Grammars that are meant to harm end with an error or an answer, and the engine goes on."""

import pytest
from msgspec import structs

from bench.formats.hostile import hostile_grammars
from engine.api import EngineRequest, SamplingParams
from engine.assembly.parts import Parts
from engine.grammar.source import problem_of
from engine.validation import excess_of
from tests.engine.grammar.constrained import PICK, constraining, save
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import EOS
from tests.engine.simulation import make_request


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("hostile")
    save(folder)
    return load(folder, num_blocks=200)


def answered(parts: Parts, count: int, seed: int) -> tuple[int, int, int]:
    """How many the door refuses, how many the engine ends with an error, and how many it answers,
    beside one that means no harm."""
    sampling = SamplingParams(max_tokens=20, temperature=1.0, stop_token_ids=(EOS,), seed=seed)
    requests: list[EngineRequest] = []
    for number, (_, grammar) in enumerate(hostile_grammars(count, seed)):
        problem = excess_of(grammar) or problem_of(grammar)
        assert problem is None or 0 < len(problem) <= 400
        if problem is None:
            one = make_request(str(number), [5, 6, 7], tenant="hostile", grammar=grammar)
            requests.append(structs.replace(one, sampling=sampling))
    harmless = make_request("harmless", [5, 6, 7], 20, grammar=PICK)
    core, reasons = constraining(parts), dict[str, str | None]()
    for request in [*requests, harmless]:
        core.submit(request)
    while not core.is_idle:
        for delta in core.step():
            if delta.finish_reason is not None:
                assert (delta.error is not None) == (delta.finish_reason == "error")
                reasons[delta.request_id] = delta.finish_reason
        core.scheduler.check()
    assert reasons.keys() == {one.request_id for one in [*requests, harmless]}
    assert reasons["harmless"] in ("stop", "length")
    failed = sum(reason == "error" for reason in reasons.values())
    return count - len(requests), failed, len(requests) - failed


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(5))
def test_two_hundred_hostile_grammars_harm_nobody(parts: Parts, seed: int) -> None:
    refused, failed, good = answered(parts, 40, seed)
    assert refused + failed > 10
    assert good > 3


def test_one_of_each_kind_harms_nobody(parts: Parts) -> None:
    answered(parts, 19, 77)
