"""A KV cache in 8 bits on a CPU: the answers are those of `generate()` with keys and values rounded
in the same way, in every mode."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from engine.api import SamplingParams
from engine.assembly.assemble import load_core, make_runner
from engine.config import EngineConfig
from engine.serve.core import EngineCore
from kernels.kv_format import dequantize, quantize
from kernels.native import library
from kernels.prefix_groups import GroupingRule
from tests.engine.draft.test_models import Hindsight, answers
from tests.engine.draft.test_small_models import config_of, guessing
from tests.engine.model.test_model import generate, save_model
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

BLOCK = 8
BLOCK_BYTES = 3 * 2 * 2 * BLOCK * (16 + 16)
"""Layers, keys and values, heads, tokens, codes with their scale."""
COUNT = 20


@pytest.fixture(autouse=True)
def _short_runs_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(_: torch.device, *, batch_invariant: bool) -> GroupingRule:
        return GroupingRule(least_saved_keys=2, whole=256 if batch_invariant else 1)

    monkeypatch.setattr("engine.run.runner.rule_for", rule)


def make_core(
    folder: Path, num_blocks: int, num_host_blocks: int = 0, **options: object
) -> EngineCore:
    fields = {
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "int8",
        "block_size": BLOCK,
        "step_token_budget": 48,
        "max_running_requests": 8,
        "threads": 1,
        "kv_memory_bytes": num_blocks * BLOCK_BYTES,
        "host_memory_bytes": num_host_blocks * BLOCK_BYTES,
    }
    return load_core(EngineConfig(model_path=str(folder), **(fields | options)))  # type: ignore[arg-type]


def attend_to_rounded(
    module: nn.Module,
    query: Tensor,  # [1, heads, tokens, head_dim]
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """An `AttentionInterface` function in plain torch, over keys and values as 8 bits keep them."""
    keys, values = (
        dequantize(quantize(part, torch.int8)).repeat_interleave(query.shape[1] // part.shape[1], 1)
        for part in (key, value)
    )
    scores = query @ keys.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = (scores + mask[..., : keys.shape[2]]).softmax(-1)
    return (weights @ values).transpose(1, 2), None


def save_rounded_model(family: str, folder: Path) -> PreTrainedModel:
    """A model whose attention rounds what it attends to, saved as every other one."""
    AttentionInterface.register("rounded", attend_to_rounded)
    AttentionMaskInterface.register("rounded", eager_mask)
    model = save_model(family, folder)
    model.set_attn_implementation("rounded")
    return model


def conversations() -> list[list[int]]:
    """Prompts with a head in common, longer than a step."""
    rng = random.Random(7)
    head = random_prompt(rng, 60)
    return [head + random_prompt(rng, rng.randrange(1, 40)) for _ in range(4)]


@pytest.mark.parametrize(
    ("family", "num_blocks", "compiled"),
    [("llama", 20, True), ("llama", 20, False), ("gemma2", 20, True), ("gpt2", 40, False)],
)
def test_answers_are_those_of_a_model_that_rounds_keys_and_values(
    family: str,
    num_blocks: int,
    compiled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(library, "_library", None)
    model = save_rounded_model(family, tmp_path)
    core = make_core(tmp_path, num_blocks)  # which GPT-2 has twice the heads to fill
    prompts = conversations()
    expected = {str(i): generate(model, prompt, COUNT) for i, prompt in enumerate(prompts)}
    for attempt in ("cold", "cached"):
        for index, prompt in enumerate(prompts):
            core.submit(make_request(str(index), prompt, COUNT))
        # Layers that forget are seldom short of memory.
        assert run_to_end(core, preempt_after=4) == expected, attempt
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.cached_tokens > 0
    assert stats.blocks_in_use == 0
    core.scheduler.check()


@pytest.mark.parametrize(
    "options",
    [
        {"recovery": "swap", "num_blocks": 24, "num_host_blocks": 40, "min_run_tokens": 4},
        {"recovery": "recompute", "num_blocks": 24, "min_run_tokens": 4},
        {"prefix_grouping": False},
        {"batch_invariant": True},
        {"prefix_cache": False, "step_token_budget": 200},
    ],
    ids=str,
)
def test_every_mode_says_the_same(options: dict[str, object], tmp_path: Path) -> None:
    model = save_rounded_model("llama", tmp_path)
    prompts = conversations()
    expected = {str(i): generate(model, prompt, COUNT) for i, prompt in enumerate(prompts)}
    core = make_core(tmp_path, **({"num_blocks": 80} | options))  # type: ignore[arg-type]
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, COUNT))
    assert run_to_end(core) == expected
    core.scheduler.check()
    stats = core.stats()
    assert (stats.preemptions > 0) == ("recovery" in options)
    if "recovery" in options:
        assert stats.recomputed == (stats.preemptions if options["recovery"] == "recompute" else 0)


def test_guesses_are_verified_and_a_draft_model_makes_them_over_codes(tmp_path: Path) -> None:
    model = save_rounded_model("llama", tmp_path)
    prompts = conversations()
    expected = {str(i): generate(model, prompt, COUNT) for i, prompt in enumerate(prompts)}
    by_itself, drafter, parts = guessing(config_of(tmp_path, tmp_path, kv_dtype="int8"))
    partly_wrong = Hindsight({name: {0: output} for name, output in expected.items()}, 1000)
    runner, _ = make_runner(parts)
    config = msgspec.structs.replace(parts.config, prefix_cache=False)
    other = EngineCore(config, parts.info, runner, drafter=partly_wrong)
    for core in (by_itself, other):
        for index, prompt in enumerate(prompts):
            core.submit(make_request(str(index), prompt, COUNT))
        assert run_to_end(core) == expected
        core.scheduler.check()
    drafter.check()
    stats = by_itself.stats()
    assert stats.accepted_tokens > 0.95 * stats.drafted_tokens > 45
    assert 0 < other.stats().accepted_tokens < other.stats().drafted_tokens


def test_forks_copy_a_block_of_codes_before_they_write_to_it(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    prompt = random_prompt(random.Random(6), 50)
    sampling = SamplingParams(max_tokens=COUNT, temperature=1.0, seed=7)
    request = make_request("r", prompt, num_sequences=5, sampling=sampling)
    together, _ = answers(make_core(tmp_path, 60), [request])
    assert len(set(map(tuple, together["r"].values()))) > 1
    for options in ({"prefix_grouping": False}, {"batch_invariant": True}):
        assert answers(make_core(tmp_path, 60, **options), [request])[0] == together


def test_the_same_memory_holds_more_tokens_and_what_it_holds_is_hashed_apart(
    tmp_path: Path,
) -> None:
    save_model("llama", tmp_path)
    rounded, plain = (make_core(tmp_path, 60, kv_dtype=kind).info for kind in ("int8", "auto"))
    assert rounded.num_blocks == 60
    assert plain.num_blocks == 30
    assert rounded.hash_extras != plain.hash_extras
