"""Blocks of a real model's memory: bit for bit the same after a restart, and so are answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch

from engine.assembly.assemble import load_core
from engine.config import EngineConfig
from engine.serve.core import EngineCore
from tests.engine.disk.simulated import keeper, kept_files, pin, save
from tests.engine.model.test_model import generate, save_model
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

PROMPT = random_prompt(random.Random(4), 75)
BLOCKS = len(PROMPT) // 8


def config_of(folder: Path, **fields: object) -> EngineConfig:
    config = EngineConfig(
        model_path=str(folder / "model"),
        device="cpu",
        dtype="float32",
        block_size=8,
        step_token_budget=48,
        max_running_requests=8,
        threads=1,
        kv_memory_bytes=1 << 21,
        kept_dir=str(folder / "kept"),
        kept_seconds=0.001,
    )
    return msgspec.structs.replace(config, **fields)


def start(config: EngineConfig) -> EngineCore:
    core = load_core(config)
    core.scheduler.pace.seconds = lambda start, count: None
    return core


def chain_images(core: EngineCore, prompt: list[int]) -> list[bytes]:
    """What the blocks hold that a prompt finds in the pool."""
    table = core.scheduler.new_table(make_request("look", prompt))()
    blocks = core.scheduler.pool.find(table.prefix_hashes(prompt))
    return [core._runner._model.rows[block].numpy().tobytes() for block in blocks]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_blocks_come_back_bit_for_bit(tmp_path: Path, kv_dtype: Literal["auto", "int8"]) -> None:
    save_model("llama", tmp_path / "model")
    config = config_of(tmp_path, kv_dtype=kv_dtype)
    core = start(config)
    pin(core, PROMPT)
    before = chain_images(core, PROMPT)
    save(core)

    core = start(config)
    core.submit(make_request("r", PROMPT, 1))
    run_to_end(core)
    assert core.stats().restored_blocks == len(before) == BLOCKS
    assert chain_images(core, PROMPT) == before


@pytest.mark.parametrize(
    ("family", "num_kinds"),
    [("llama", 1), ("gemma2", 2), ("gpt_oss", 2), ("mistral", 1), ("qwen3_next", 2)],
)
def test_answers_are_those_of_a_cold_start(tmp_path: Path, family: str, num_kinds: int) -> None:
    model = save_model(family, tmp_path / "model")
    prompts = [PROMPT + random_prompt(random.Random(n), 5) for n in range(3)]
    core = start(config_of(tmp_path))
    pin(core, PROMPT)
    save(core)
    core = start(config_of(tmp_path))
    for number, prompt in enumerate(prompts):
        core.submit(make_request(f"{number}", prompt, 20))
    outputs = run_to_end(core)
    kinds = core.info.kinds
    assert len(kinds) == num_kinds
    pages = sum(kind.pages * len(kind.seen(BLOCKS * 8, 8)) for kind in kinds)
    assert core.stats().restored_blocks == core.scheduler.pool.in_blocks(pages)
    for number, prompt in enumerate(prompts):
        assert outputs[f"{number}"] == generate(model, prompt, 20)


def test_files_of_other_weights_are_dropped(tmp_path: Path) -> None:
    model = save_model("llama", tmp_path / "model")
    core = start(config_of(tmp_path))
    pin(core, PROMPT)
    save(core)
    keeper(core).close(0.0)
    with torch.no_grad():
        next(iter(model.parameters())).mul_(2)
    model.save_pretrained(tmp_path / "model")
    core = start(config_of(tmp_path))
    assert not kept_files(tmp_path / "kept")
    core.submit(make_request("r", PROMPT, 8))
    assert run_to_end(core)["r"] == generate(model, PROMPT, 8)
