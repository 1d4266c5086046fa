"""Which models may be cut: the fused families; what may not is refused by name."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch

from engine.api import EngineError
from engine.assembly.assemble import make_core
from engine.assembly.parts import load_parts
from engine.assembly.process import ProcessEngine
from engine.model.layers.shard import Shard
from engine.model.load import load_shard
from tests.engine.model.checkpoints.test_folder_experts import (
    GPT_OSS,
    random_model,
    store_mxfp4,
)
from tests.engine.model.layers.variants import VARIANTS, Variant
from tests.engine.model.test_model import SMALL, generate, save_model
from tests.engine.model.test_parallel import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    OUTPUT,
    UNEVEN,
    check_generated,
    config_of,
    leading,
    save,
    with_room,
)
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

JOINTLY_NORMED = {"olmo2", "olmo3", "olmoe", "minimax_m2"}
CUT = {
    name: variant
    for name, variant in VARIANTS.items()
    if variant[1].get("num_key_value_heads", SMALL["num_key_value_heads"]) != 1
    and variant[0] not in JOINTLY_NORMED
}

WINDOWED: Variant = (
    "gemma2",
    UNEVEN[1]
    | {
        "attention_bias": False,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
)


def test_pages_behind_windows_are_used_again_on_every_rank(tmp_path: Path) -> None:
    model = save(WINDOWED, tmp_path)
    parts = load_parts(with_room(config_of(tmp_path, 2), 0))
    try:
        assert len(parts.model.kinds) == 2
        core, room = make_core(parts), NUM_BLOCKS * BLOCK_SIZE
        prompt = random_prompt(random.Random(9), room + 40)
        core.submit(make_request("long", prompt, max_tokens=OUTPUT))
        assert run_to_end(core)["long"] == generate(model, prompt, OUTPUT)
        assert core.stats().preemptions == 0
        check_generated(model, core)
        assert core.stats().preemptions > 0
    finally:
        leading(parts).followers.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CUT)
def test_every_family_says_in_two_processes_what_generate_does(name: str, tmp_path: Path) -> None:
    model = save(CUT[name], tmp_path)
    parts = load_parts(with_room(config_of(tmp_path, 2), 0))
    try:
        check_generated(model, make_core(parts))
    finally:
        leading(parts).followers.close()


def test_what_cannot_be_cut_is_refused_by_name(tmp_path: Path) -> None:
    save(("llama", {"num_key_value_heads": 1}), tmp_path)
    with pytest.raises(EngineError, match="tensor_parallel: 2 processes, and the model has 1 KV"):
        load_parts(config_of(tmp_path, 2))
    save(("olmo2", {}), tmp_path)
    with pytest.raises(EngineError, match="tensor_parallel: norms over all heads"):
        load_shard(config_of(tmp_path, 2), Shard(1, 2), by_kinds=True)
    with pytest.raises(ValueError, match="kept_dir: blocks are not kept"):
        config_of(tmp_path, 2, kept_dir=str(tmp_path))
    with pytest.raises(ValueError, match="tensor_parallel: must be at least 1"):
        config_of(tmp_path, 0)


@pytest.mark.exhaustive
def test_experts_in_codes_are_cut_once_they_are_widened(tmp_path: Path) -> None:
    model = random_model("gpt_oss", GPT_OSS, tmp_path)
    with torch.no_grad():
        store_mxfp4(model, tmp_path)
    with pytest.raises(EngineError, match="tensor_parallel: weights that stay as they were"):
        load_parts(with_room(config_of(tmp_path, 2), 0))
    assert not multiprocessing.active_children()
    parts = load_parts(with_room(config_of(tmp_path, 2, quantize="none"), 0))
    try:
        check_generated(model, make_core(parts))
    finally:
        leading(parts).followers.close()


@pytest.mark.exhaustive
def test_a_model_that_is_not_fused_is_refused_and_its_processes_end(tmp_path: Path) -> None:
    save_model("gpt_neox", tmp_path)
    with pytest.raises(
        EngineError, match="tensor_parallel: not for this model: GPTNeoXForCausalLM"
    ):
        load_parts(config_of(tmp_path, 2))
    assert not multiprocessing.active_children()


def test_a_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    save_model("llama", tmp_path)
    with pytest.raises(EngineError, match="tensor_parallel: models are cut for CPUs only"):
        load_parts(msgspec.structs.replace(config_of(tmp_path, 2), device="cuda"))


@pytest.mark.exhaustive
async def test_a_process_that_dies_takes_the_engine_with_it_and_no_stream(tmp_path: Path) -> None:
    model, prompt = save_model("llama", tmp_path), random_prompt(random.Random(8), 30)
    engine = ProcessEngine(config_of(tmp_path, 2, kv_memory_bytes=8 << 20))
    await engine.start()
    try:
        found: list[int] = []
        ranks: list[psutil.Process] = []
        async with asyncio.timeout(120):
            async for delta in engine.generate(make_request("one", prompt, max_tokens=60)):
                assert delta.error is None
                found += delta.token_ids
                if len(found) >= 5 and not ranks:
                    ranks = psutil.Process(engine.pid).children(recursive=True)
                    for rank in ranks:
                        rank.kill()
        assert ranks
        assert found == generate(model, prompt, 60)
        assert await engine.wait_started(1) == 2
    finally:
        await engine.close()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [{"batch_invariant": True}, {"kv_dtype": "int8"}, {"quantize": "int8"}, {"quantize": "int4"}],
    ids=str,
)
def test_every_mode_says_cached_what_it_says_cold(options: dict[str, Any], tmp_path: Path) -> None:
    model = save(VARIANTS["qwen3"], tmp_path)
    parts = load_parts(config_of(tmp_path, 2, kv_memory_bytes=8 << 20, **options))
    try:
        core, prompt = make_core(parts), random_prompt(random.Random(4), 50)
        found = []
        for name in ("cold", "cached"):
            core.submit(make_request(name, prompt, max_tokens=20))
            found.append(run_to_end(core)[name])
        assert found[0] == found[1]
        assert core.stats().cached_tokens > 0
        if "batch_invariant" in options:
            assert found[0] == generate(model, prompt, 20)
    finally:
        leading(parts).followers.close()
