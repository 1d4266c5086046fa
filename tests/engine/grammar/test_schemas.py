"""Whatever a schema asks for, an answer that has ended is valid by it."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from msgspec import structs

from engine.api import EngineRequest, Grammar, SamplingParams
from engine.grammar.source import problem_of
from engine.run.assemble import Parts
from tests.engine.grammar.constrained import constraining, save, start, text
from tests.engine.run.test_graphs import load
from tests.engine.simulation import EOS, make_request, run_all_to_end

COMPACT = {"whitespace_flexible": False}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder: Path = tmp_path_factory.mktemp("schemas")
    save(folder)
    return load(folder, num_blocks=400)


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Of any kind of value; whatever holds others ends after `depth` of them."""
    kinds = [_text, _number, _constant, *([_object, _array, _any_of] * (depth > 0))]
    return rng.choice(kinds)(rng, depth - 1)


def _text(rng: random.Random, _: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 7)}
    return {"type": "string", "pattern": rng.choice(["^[a-f]{2,5}$", "^(ab|cd)+-[0-9]{2}$"])}


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    least = rng.randrange(-50, 50)
    bounds = {"minimum": least, "maximum": least + rng.randrange(1, 500)}
    if rng.random() < 0.3:
        return {"type": "integer", **bounds, "multipleOf": rng.randrange(2, 6)}
    return {"type": rng.choice(["integer", "integer", "number"]), **bounds}


def _constant(rng: random.Random, _: int) -> dict[str, Any]:
    values: list[object] = [None, True, 3, -1.5, "wall", 'a "b"\n', [1, "x"], {"k": None}]
    return rng.choice(
        [
            {"const": rng.choice(values)},
            {"enum": rng.sample(values, 3)},
            {"type": "boolean"},
            {"type": ["null", "boolean"]},
        ]
    )


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["a", "name", "two words", 'qu"ote', "é"], rng.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    items = random_schema(rng, depth)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randrange(1, 4))]}


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
            assert jsonschema_rs.validator_for(schema).is_valid(value), (schema, value)
    return ended


def test_twenty_random_schemas(parts: Parts) -> None:
    rng = random.Random(1)
    assert answered(parts, [random_schema(rng) for _ in range(20)]) >= 18


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_five_hundred_random_schemas(parts: Parts, seed: int) -> None:
    rng = random.Random(f"schemas {seed}")
    assert answered(parts, [random_schema(rng, 3) for _ in range(50)]) >= 40


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
