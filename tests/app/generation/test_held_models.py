"""A model that knows nothing calls functions all the same, where its answers are held to calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from transformers import PreTrainedTokenizerFast

from app.formats.tools.format import Shape
from app.formats.tools.formats import FORMATS
from app.formats.tools.parser import ToolParser
from app.generation.answer_grammar import call_grammar
from app.generation.detokenizer import Detokenizer
from engine.api import SamplingParams
from engine.assembly.parts import Parts
from tests.engine.grammar.constrained import constraining, save, start
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import EOS
from tests.engine.simulation import make_request

FLAT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["wall", "door"]},
        "rooms": {"enum": [1, 2, 3]},
        "shared": {"type": "boolean"},
    },
    "required": ["kind", "rooms"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parts, PreTrainedTokenizerFast]:
    folder: Path = tmp_path_factory.mktemp("held")
    save(folder)
    return load(folder, num_blocks=400), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("name", list(FORMATS))
def test_random_weights_call_right(name: Any, model: tuple[Parts, PreTrainedTokenizerFast]) -> None:
    parts, tokenizer = model
    form = FORMATS[name]
    shapes = [Shape.of("build", FLAT, True), Shape.of("stop", None, True)]
    grammar = call_grammar(form, {}, shapes, parallel=False, required=True)
    core = constraining(parts)
    for seed in range(3):
        sampling = SamplingParams(
            max_tokens=1000, temperature=1.0, seed=seed, stop_token_ids=(EOS,)
        )
        start(core, [make_request(f"{seed}", [5, 6, 7], 1000, grammar=grammar, sampling=sampling)])
        tokens: list[int] = []
        while not core.is_idle:
            deltas = core.step()
            core.scheduler.check()
            tokens += [token for delta in deltas for token in delta.token_ids]
        assert tokens[-1] == EOS
        reader = ToolParser(form, {"build": FLAT, "stop": {}})
        detokenizer = Detokenizer(tokenizer, shown=form.markers)
        told = [*reader.push(detokenizer.push(tokens[:-1])), *reader.finish()]
        [call, arguments] = told
        expected = FLAT if call.text == "build" else {"maxProperties": 0}
        assert call.kind == "call"
        jsonschema_rs.validator_for(expected).validate(json.loads(arguments.text))
