"""A checkpoint that lacks something, or fits its configuration not, is refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api import EngineError
from engine.config import EngineConfig
from engine.model.load import load_model
from tests.engine.model.test_model import save_model
from tests.engine.model.tiny_families import tiny_config, tiny_model

Weights = dict[str, Tensor]


def load(folder: Path) -> None:
    load_model(EngineConfig(model_path=str(folder), device="cpu", dtype="float32"), by_kinds=True)


def with_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("lfm2", "model.layers.0.conv.conv.weight"),
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("qwen3_next", "model.layers.0.linear_attn.A_log"),
    ],
)
def test_what_a_checkpoint_lacks_is_named_and_never_drawn(
    family: str, name: str, tmp_path: Path
) -> None:
    save_model(family, tmp_path)
    shape = list(load_file(tmp_path / "model.safetensors")[name].shape)
    wrong = [size + 1 for size in shape]
    with_weights(tmp_path, lambda weights: weights.update({name: torch.zeros(wrong)}))
    with pytest.raises(EngineError) as told:
        load(tmp_path)
    assert f"the checkpoint has {name} of shape {wrong}, not {shape}" in str(told.value)
    with_weights(tmp_path, lambda weights: weights.pop(name))
    with pytest.raises(EngineError, match=f"the checkpoint has no {name}$"):
        load(tmp_path)


def test_decays_that_a_configuration_says_need_not_be_in_a_checkpoint(tmp_path: Path) -> None:
    save_model("minimax", tmp_path)
    with_weights(
        tmp_path,
        lambda weights: [
            weights.pop(one) for one in list(weights) if "decay" in one or "slope" in one
        ],
    )
    load(tmp_path)


def test_a_layer_of_another_kind_than_its_weights_is_refused(tmp_path: Path) -> None:
    tiny_model(tiny_config("qwen3_5_text")).save_pretrained(tmp_path)
    change(tmp_path, "layer_types", ["full_attention"] * 4)
    with pytest.raises(EngineError, match=r"the checkpoint has no model.layers.0.self_attn.* more"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("family", "field", "value", "told"),
    [
        ("qwen3_5_text", "linear_key_head_dim", "4", "'linear_key_head_dim' expected int, got str"),
        ("qwen3_5_text", "linear_num_value_heads", -1, "negative dimension"),
        ("qwen3_5_text", "layer_types", ["other"] * 4, "`layer_types` entries must be"),
        ("granitemoehybrid", "mamba_chunk_size", 0, "fails on a single token: .*zero"),
        ("granitemoehybrid", "mamba_n_heads", 0, "ZeroDivisionError"),
        ("lfm2", "num_attention_heads", 0, "ZeroDivisionError"),
        ("lfm2", "layer_types", ["conv"], r"must be equal to the number of `layer_types`"),
    ],
)
def test_numbers_that_make_no_model_are_told(
    family: str, field: str, value: Any, told: str, tmp_path: Path
) -> None:
    tiny_model(tiny_config(family)).save_pretrained(tmp_path)
    change(tmp_path, field, value)
    with pytest.raises(EngineError, match=told) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def change(folder: Path, field: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert field in config
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
