"""Every kind of layer that PEFT changes, in models of every kind: the logits are PEFT's."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch.batch import pack
from engine.config import EngineConfig
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.self_check import relative_error
from engine.run.adapters import ModelAdapters
from kernels.types import AdaptedRows
from tests.engine.adapters.peft_models import make_adapter
from tests.engine.model.checkpoints.test_folder_experts import (
    GPT_OSS,
    random_model,
    store_mxfp4,
)
from tests.engine.model.tiny_families import tiny_config, tiny_model
from tests.kernels.test_linear import needs_library

BLOCK = 16
TOKENS = 37
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS: dict[str, list[str]] = {
    # one product for several layers, heads in pairs, sums of several kinds
    **{one: [*ATTENTION, "down_proj"] for one in ("llama", "cohere", "gemma3_text", "granite")},
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "glm4": [*ATTENTION, "gate_up_proj", "down_proj"],
    "starcoder2": [*ATTENTION, "c_fc", "c_proj"],
    # beside experts that stay the base's
    "qwen3_moe": ATTENTION,
    "gpt_oss": ATTENTION,
    # modules of their own, latents, states
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "opt": ["q_proj", "k_proj", "v_proj", "out_proj"],
    "gemma4_text": [*ATTENTION, "gate_proj", "up_proj", "down_proj", "per_layer_projection"],
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
    "lfm2": ["in_proj", "out_proj", "q_proj", "w1", "w2", "w3"],
    "kimi_linear": ["q_proj", "k_proj", "v_proj", "o_proj", "f_a_proj", "b_proj", "g_b_proj"],
    "qwen3_next": ["q_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"],
    "granitemoehybrid": ["in_proj", "q_proj", "v_proj"],
}
SOME = {"phi3", "glm4", "cohere", "gpt_oss", "gemma4_text", "deepseek_v3", "lfm2"}


def logits(
    model: PagedModel, adapters: ModelAdapters, folder: Path, ids: list[int], first: int = 5
) -> torch.Tensor:
    """Of the tokens from `first` on with an adapter, and of those before it without."""
    files = (folder / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    image = adapters.prepare(*(file.read_bytes() for file in files))
    blocks, columns = -(-len(ids) // BLOCK), model.pages.num_columns
    model.allocate(image.num_pages + columns * blocks + 4 * model.pages.state_pages)
    pages = list(reversed(range(image.num_pages)))
    for number, page in enumerate(pages):
        image.fill(number, memoryview(model.rows[page].numpy()))
    adapters.use(b"an adapter", image, pages)
    table = torch.arange(columns * blocks).view(columns, blocks).numpy() + image.num_pages
    own = table if columns > 1 else table[0]
    batch = pack([(ids, 0, len(ids), own)], list(range(len(ids))), BLOCK, model.device)
    rows = torch.arange(first, len(ids))
    adapted = (AdaptedRows(model.adapters[b"an adapter"], rows),)
    return model.forward(replace(batch, adapted=adapted))


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=() if one in SOME else pytest.mark.exhaustive)
        for one in sorted(TARGETS)
    ],
)
def test_a_changed_model_computes_what_peft_computes(family: str, tmp_path: Path) -> None:
    base = tiny_model(tiny_config(family))
    base.save_pretrained(tmp_path / "model")
    rng = random.Random(3)
    ids = [rng.randrange(13, 97) for _ in range(TOKENS)]
    ids[5:7] = 11, 12
    made = make_adapter(
        base, tmp_path / "adapter", 1, (11, 12), r=5, target_modules=TARGETS[family]
    )
    with made.changing(base) as changed, torch.inference_mode():
        expected = changed(torch.tensor([ids])).logits[0]
        with changed.disable_adapter():
            plain = changed(torch.tensor([ids])).logits[0]
    config = EngineConfig(
        model_path=str(tmp_path / "model"), dtype="float32", max_context_tokens=64, block_size=BLOCK
    )
    model = load_model(config, by_kinds=True)
    found = logits(model, ModelAdapters(model), made.folder, ids)
    assert relative_error(found, expected) < 1e-5
    assert relative_error(plain[5:], expected[5:]) > 0.01


EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen3_moe": {"use_rslora": True, "rank_pattern": {"experts.gate_up_proj": 2}},
    "olmoe": {"alpha_pattern": {"down_proj": 3}, "r": 7},
    "gpt_oss": {"r": 1},
    "glm4_moe": {"target_modules": ["gate_proj", "up_proj", "down_proj"]},  # of what is shared
}
"""Families, and what their adapters have besides."""


@pytest.mark.parametrize("parameters", [("gate_up_proj", "down_proj"), ("down_proj",)], ids=len)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=() if one == "gpt_oss" else pytest.mark.exhaustive)
        for one in sorted(EXPERTS)
    ],
)
def test_changed_experts_compute_what_peft_computes(
    family: str, parameters: tuple[str, ...], tmp_path: Path
) -> None:
    base = tiny_model(tiny_config(family))
    base.save_pretrained(tmp_path / "model")
    rng = random.Random(3)
    ids = [rng.randrange(13, 97) for _ in range(TOKENS)]
    options: dict[str, Any] = {"r": 5, "target_modules": ["q_proj"], **EXPERTS[family]}
    targets = [f"mlp.experts.{one}" for one in parameters]
    folder = tmp_path / "adapter"
    made = make_adapter(base, folder, 1, target_parameters=targets, **options)
    with made.changing(base) as changed, torch.inference_mode():
        expected = changed(torch.tensor([ids])).logits[0]
        with changed.disable_adapter():
            plain = changed(torch.tensor([ids])).logits[0]
    config = EngineConfig(
        model_path=str(tmp_path / "model"), dtype="float32", max_context_tokens=64, block_size=BLOCK
    )
    model = load_model(config, by_kinds=True)
    assert model.weights.is_fused
    found = logits(model, ModelAdapters(model), folder, ids, first=0)
    assert relative_error(found, expected) < 1e-5
    assert relative_error(plain, expected) > 0.01


@needs_library
def test_experts_in_codes_are_changed_beside_them(tmp_path: Path) -> None:
    base = random_model("gpt_oss", GPT_OSS, tmp_path / "model")
    with torch.no_grad():
        store_mxfp4(base, tmp_path / "model")
    rng = random.Random(3)
    ids = [rng.randrange(13, 97) for _ in range(TOKENS)]
    folder, targets = tmp_path / "adapter", ["experts.gate_up_proj", "experts.down_proj"]
    made = make_adapter(base, folder, 1, r=5, target_modules=["q_proj"], target_parameters=targets)
    with made.changing(base) as changed, torch.inference_mode():
        expected = changed(torch.tensor([ids])).logits[0]
        with changed.disable_adapter():
            plain = changed(torch.tensor([ids])).logits[0]
    model = load_model(
        EngineConfig(
            model_path=str(tmp_path / "model"),
            dtype="float32",
            max_context_tokens=64,
            block_size=16,
        )
    )
    assert model.weights.quantized_by == "mxfp4"
    found = logits(model, ModelAdapters(model), folder, ids, first=0)
    assert relative_error(found, expected) < 0.06
    assert relative_error(plain, expected) > 0.2
