"""Layers that keep a state: what `generate()` says, whatever becomes of a sequence's blocks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from engine.api import BeamParams, EngineError, SamplingParams
from engine.assembly.assemble import load_core
from engine.config import EngineConfig
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.load import load_model
from engine.serve.core import EngineCore
from tests.engine.model.states import config_of, saved
from tests.engine.model.test_model import FAMILIES, STATES, generate, save_model
from tests.engine.model.tiny_families import tiny_config, tiny_model
from tests.engine.schedule.test_beams_in_blocks import results, searched, steps_to_end
from tests.engine.schedule.test_forks import forked
from tests.engine.sequences import test_beam as beams
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end

OTHERS = ("bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2_moe", "olmo_hybrid")
OTHERS += ("jamba", "mamba", "qwen3_5_text", "qwen3_5_moe_text")


def core_of(folder: Path, num_blocks: int, num_states: int, **fields: Any) -> EngineCore:
    """An engine with room for so many."""
    return load_core(config_of(folder, num_blocks, num_states, **fields))


def chats(core: EngineCore, model: PreTrainedModel, num_turns: int = 3) -> None:
    """Four chats behind one beginning, turn by turn, each answered as by `generate()`."""
    rng = random.Random(7)
    head = random_prompt(rng, 60)
    said = {str(chat): head + random_prompt(rng, rng.randrange(1, 40)) for chat in range(4)}
    for _ in range(num_turns):
        for name, prompt in said.items():
            core.submit(make_request(name, prompt, max_tokens=16))
        answers = run_to_end(core)
        core.scheduler.check()
        assert answers == {name: generate(model, prompt, 16) for name, prompt in said.items()}
        for name, answer in answers.items():
            said[name] += [*answer, *random_prompt(rng, 9)]


@pytest.mark.parametrize(
    "family", [*STATES, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in OTHERS)]
)
def test_turns_go_on_from_states_swapped_and_evicted_ones_too(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    host = 1 << 21
    few, many = core_of(tmp_path, 34, 6, host_memory_bytes=host), core_of(tmp_path, 400, 60)
    chats(few, model)
    chats(many, model)
    assert few.stats().swapped_in > 0
    assert many.stats().cached_tokens >= few.stats().cached_tokens > 0


@pytest.mark.parametrize("recovery", ["swap", "recompute"])
def test_forks_share_a_state_and_come_back_from_preemption(recovery: str, tmp_path: Path) -> None:
    model = save_model("qwen3_next", tmp_path)
    core = core_of(tmp_path, 40, 12, recovery=recovery, min_run_tokens=1, host_memory_bytes=1 << 20)
    prompts = [random_prompt(random.Random(seed), 45) for seed in range(3)]
    sampling = SamplingParams(max_tokens=24, temperature=0, stop_token_ids=(3,))
    for number, prompt in enumerate(prompts):
        core.submit(forked(str(number), prompt, 24, 2, sampling=sampling))
    found = run_all_to_end(core, preempt_after=4)
    for number, prompt in enumerate(prompts):
        assert found[str(number)] == dict.fromkeys(range(2), generate(model, prompt, 24))
    assert core.stats().preemptions > 0
    assert core.stats().copied_blocks > 0


def test_beams_over_states_equal_generate(tmp_path: Path) -> None:
    model = save_model("nemotron_h", tmp_path)
    core, rng, stops = core_of(tmp_path, 60, 12), random.Random(5), tuple(range(3, 33))
    expected = {}
    for num_beams in (2, 4):
        beam = BeamParams(num_beams=num_beams, num_return=num_beams)
        prompt = random_prompt(rng, 20)
        sampling = SamplingParams(max_tokens=20, temperature=0, stop_token_ids=stops)
        core.submit(searched(str(num_beams), prompt, 20, beam, sampling=sampling))
        expected[str(num_beams)] = beams.generate(model, prompt, beam, stops, 20)
    found = results(steps_to_end(core))
    for name, outputs in expected.items():
        beams.assert_equal(found[name], outputs, stops)


@pytest.fixture
def _limited_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of prompts pass at least so fast; `transformers` asks that of no others."""
    limit = {"time_step_min": 0.5}
    monkeypatch.setitem(FAMILIES, "nemotron_h", FAMILIES["nemotron_h"] | limit)


@pytest.mark.usefixtures("_limited_steps")
@pytest.mark.parametrize("budget", [1, 3, 48])
def test_what_is_a_prompts_is_told_however_it_is_cut(budget: int, tmp_path: Path) -> None:
    model = save_model("nemotron_h", tmp_path)
    fields = {"step_token_budget": budget, "max_running_requests": min(budget, 8)}
    core = core_of(tmp_path, 60, 9, recovery="recompute", **fields)
    for length in (17, 18, 33):
        prompt = random_prompt(random.Random(length), length)
        expected = {str(length): generate(model, prompt, 20)}
        for preempt_after in (None, None, 12):
            core.submit(make_request(str(length), prompt, 20))
            assert run_to_end(core, preempt_after=preempt_after) == expected


@pytest.mark.usefixtures("_limited_steps")
def test_prompts_go_on_from_no_state_that_they_would_not_have_come_to(tmp_path: Path) -> None:
    model = save_model("nemotron_h", tmp_path)
    core = core_of(tmp_path, 400, 60)
    chats(core, model)
    assert core.stats().cached_tokens > 4 * 60, "what was a prompt's is found"


def test_an_answer_is_gone_on_with_where_an_engine_was_killed(tmp_path: Path) -> None:
    model = save_model("lfm2", tmp_path)
    prompt = random_prompt(random.Random(3), 45)
    expected = generate(model, prompt, 24)
    core = core_of(tmp_path, 60, 9)
    core.submit(make_request("again", prompt, 24, generated=[expected[:10]]))
    assert run_to_end(core)["again"] == expected[10:]


def test_rows_of_states_lie_whole_in_pages_beside_codes(tmp_path: Path) -> None:
    save_model("qwen3_next", tmp_path)
    config = EngineConfig(model_path=str(tmp_path), device="cpu", kv_dtype="int8", dtype="bfloat16")
    model = load_model(config, by_kinds=True)
    assert {place.dtype for place in model.pages.states} == {torch.float32, torch.bfloat16}
    for shape, place in zip(model.layout.states, model.pages.states, strict=True):
        rows = [row for first, count, _, _ in place.segments for row in range(first, first + count)]
        assert rows == list(range(shape.shape[0]))
        for _, count, column, start in place.segments:
            assert start % 64 == 0 or start % shape.row_bytes == 0
            assert start + count * shape.row_bytes <= model.page_bytes
            assert column < model.pages.state_pages


def test_a_model_with_states_guesses_for_nobody(tmp_path: Path) -> None:
    save_model("lfm2", tmp_path / "hybrid")
    save_model("llama", tmp_path / "dense")
    fields = {"speculation": "draft", "draft_model_path": str(tmp_path / "hybrid")}
    with pytest.raises(EngineError, match="keep a state"):
        core_of(tmp_path / "dense", 60, 9, **fields)


def test_memory_that_holds_no_state_is_refused_at_start(tmp_path: Path) -> None:
    model = save_model("qwen3_next", tmp_path)
    _, state = core_of(tmp_path, 60, 9).info.kinds
    assert state.pages > 1, "it takes more than keys of a block do"
    least = core_of(tmp_path, 1, 1)
    assert least.info.max_context_tokens == 8
    least.submit(make_request("one", [5, 6, 7], 5))
    assert run_to_end(least)["one"] == generate(model, [5, 6, 7], 5)
    with pytest.raises(EngineError, match=r"^kv_memory: a single block with its state takes \d+"):
        core_of(tmp_path, 0, 1)
    with pytest.raises(EngineError, match=r"^host_memory: a single block with its state takes"):
        core_of(tmp_path, 60, 9, host_memory_bytes=least.info.block_bytes)


def test_what_no_memory_bounds_and_no_model_names_is_bounded(tmp_path: Path) -> None:
    tiny_model(tiny_config("mamba2")).save_pretrained(tmp_path)
    assert core_of(tmp_path, 0, 9).info.max_context_tokens == 32_768
    assert core_of(tmp_path, 0, 9, max_context_tokens=40_000).info.max_context_tokens == 40_000


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize(
    "family", ["bamba", "jamba", "kimi_linear", "lfm2", "mamba2", "minimax", "qwen3_next"]
)
def test_products_beside_states_are_packed(family: str, quantize: str, tmp_path: Path) -> None:
    tiny_model(tiny_config(family)).save_pretrained(tmp_path)
    config = EngineConfig(
        model_path=str(tmp_path), device="cpu", dtype="bfloat16", max_context_tokens=400
    )
    model = load_model(msgspec.structs.replace(config, quantize=quantize), by_kinds=True)
    # Beside weights that are not rounded: a model of Mamba-2 alone loses more by 4 bits of them.
    most = 0.4 if (family, quantize) == ("mamba2", "int4") else 0.1
    assert 0 < model.logit_error < most
    decoder = model.weights.decoder
    assert isinstance(decoder, EagerDecoder)
    plain = {name for name, one in decoder.model.named_modules() if type(one) is nn.Linear}
    assert all(name.endswith(("kv_b_proj", "dt_proj")) for name in plain), "others read these"
    exact = load_model(msgspec.structs.replace(config, dtype="float32"), by_kinds=True)
    assert exact.logit_error < 1e-6
