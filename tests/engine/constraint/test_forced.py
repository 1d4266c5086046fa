"""What a grammar leaves no choice of is drafted, and right; answers are what they are without."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import EngineRequest, Grammar
from engine.assembly.assemble import make_drafter
from engine.assembly.parts import Parts
from tests.engine.draft.test_models import Hindsight
from tests.engine.grammar.constrained import (
    GRAMMARS,
    VOCAB,
    constraining,
    filtered,
    save,
    start,
    text,
)
from tests.engine.model.test_model import generate
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

COUNT = 60
LONG_KEYS = Grammar(
    kind="json_schema",
    source=json.dumps(
        {
            "type": "object",
            "properties": {
                "first_name_of_owner": {"enum": ["x", "y"]},
                "number_of_doors": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["first_name_of_owner", "number_of_doors"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False},
        }
    ),
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("forced")
    save(folder)
    return load(folder, num_blocks=60)


@pytest.fixture(scope="module")
def work(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[EngineRequest], dict[str, list[int]]]:
    folder = tmp_path_factory.mktemp("forced")
    reference = save(folder)
    vocabulary = load(folder, num_blocks=8).vocabulary
    assert vocabulary is not None
    rng = random.Random(5)
    requests: list[EngineRequest] = []
    expected: dict[str, list[int]] = {}
    for number, grammar in enumerate([LONG_KEYS, *GRAMMARS, LONG_KEYS, None]):
        name, prompt = str(number), random_prompt(rng, rng.randrange(5, 30))
        requests.append(make_request(name, prompt, COUNT, grammar=grammar))
        if grammar is None:
            expected[name] = generate(reference, prompt, COUNT)
        else:
            expected[name] = filtered(reference, prompt, COUNT, grammar, vocabulary)
    return folder, requests, expected


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("is_guessing", [False, True])
@pytest.mark.parametrize("blocks", [24, 80])
def test_forced_tokens_change_no_answer(
    work: tuple[Path, list[EngineRequest], dict[str, list[int]]],
    runs_ahead: bool,
    is_guessing: bool,
    blocks: int,
) -> None:
    folder, requests, expected = work
    parts = load(folder, num_blocks=blocks, num_host_blocks=20)
    guesses = Hindsight({name: {0: output} for name, output in expected.items()}, VOCAB)
    drafter = guesses if is_guessing else None
    core = constraining(parts, runs_ahead=runs_ahead, drafter=drafter, is_held=True)
    start(core, requests)
    assert run_to_end(core) == expected
    assert (core.stats().preemptions > 0) == (blocks == 24)


def test_they_take_fewer_steps_and_are_always_right(parts: Parts) -> None:
    request = make_request("r", [5, 6, 7], COUNT, grammar=LONG_KEYS)
    no_guess = Hindsight({"r": {0: []}}, VOCAB)
    slow, fast = constraining(parts), constraining(parts, drafter=no_guess, is_held=True)
    start(slow, [request])
    start(fast, [request])
    assert run_to_end(slow) == run_to_end(fast)
    stats = fast.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 15
    assert stats.steps < slow.stats().steps - 15


def test_guesses_that_a_grammar_does_not_allow_are_not_verified(parts: Parts) -> None:
    assert parts.vocabulary is not None
    grammar = Grammar(kind="regex", source="[a-z]{40}")
    request = make_request("r", [5, 6, 7], 30, grammar=grammar)
    outputs = constraining(parts)
    start(outputs, [request])
    (expected,) = run_to_end(outputs).values()
    digit = parts.vocabulary.tokenizer.tokenize_str("7")[0]
    wrong = {"r": {0: [token if at % 5 else digit for at, token in enumerate(expected)]}}
    core = constraining(parts, drafter=Hindsight(wrong, VOCAB, right=1.0), is_held=True)
    start(core, [request])
    assert run_to_end(core) == {"r": expected}
    stats = core.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0
    assert text(expected, parts.vocabulary).isalpha()


def test_an_engine_that_looks_up_drafts_what_is_forced(parts: Parts) -> None:
    config = structs.replace(parts.config, speculation="lookup")
    drafter = make_drafter(replace(parts, config=config))
    assert drafter is not None
    core = constraining(parts)
    request = make_request("r", [5, 6, 7], COUNT, grammar=LONG_KEYS)
    start(core, [request])
    (group,) = core.scheduler.lifecycle.live.values()
    (sequence,) = group.sequences
    assert parts.vocabulary is not None
    for token in parts.vocabulary.tokenizer.tokenize_str('{"'):
        sequence.append(token)
    (draft,) = drafter.propose([(sequence, 8)], 0.01)
    assert len(draft.token_ids) == len(draft.levels) == 8
    assert text(draft.token_ids, parts.vocabulary).startswith("first_n")
