"""Whatever a schema asks for, an answer that has ended is valid by it."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from msgspec import structs

from engine.api import EngineRequest, Grammar, SamplingParams
from engine.assembly.parts import Parts
from engine.grammar.source import problem_of
from tests.engine.grammar.constrained import constraining, save, start, text
from tests.engine.grammar.random_schemas import random_schema
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import EOS
from tests.engine.simulation import make_request, run_all_to_end

COMPACT = {"whitespace_flexible": False}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder: Path = tmp_path_factory.mktemp("schemas")
    save(folder)
    return load(folder, num_blocks=400)


def answered(parts: Parts, schemas: list[dict[str, Any]]) -> int:
    """How many of `schemas` an answer has come to an end of; each of these is valid."""
    requests: list[EngineRequest] = []
    sampling = SamplingParams(max_tokens=150, temperature=1.0, stop_token_ids=(EOS,))
    for number, schema in enumerate(schemas):
        grammar = Grammar(kind="json_schema", source=json.dumps(schema | {"x-guidance": COMPACT}))
        assert problem_of(grammar) is None, schema
        one = make_request(str(number), [5, 6, 7], grammar=grammar)
        requests.append(structs.replace(one, sampling=structs.replace(sampling, seed=number)))
    core = constraining(parts)
    start(core, requests)
    outputs, ended = run_all_to_end(core), 0
    assert parts.vocabulary is not None
    for number, schema in enumerate(schemas):
        output = outputs[str(number)][0]
        if output[-1] == EOS:
            ended += 1
            value = json.loads(text(output, parts.vocabulary))
            assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value), (
                schema
            )
    return ended


def test_twenty_random_schemas(parts: Parts) -> None:
    rng = random.Random(1)
    assert answered(parts, [random_schema(rng) for _ in range(20)]) >= 12


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_five_hundred_random_schemas(parts: Parts, seed: int) -> None:
    rng = random.Random(f"schemas {seed}")
    assert answered(parts, [random_schema(rng, 3) for _ in range(50)]) >= 30


def test_a_schema_may_refer_to_itself(parts: Parts) -> None:
    tree = {
        "type": "object",
        "properties": {
            "value": {"type": "integer", "minimum": 0, "maximum": 9},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    assert answered(parts, [tree] * 4) > 0
