"""Small adapters, as PEFT writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save

LINEARS = {"model.layers.0.self_attn.q_proj": (8, 16), "model.layers.0.mlp.up_proj": (8, 32)}
"""Of the model that they are for: numbers of inputs and outputs."""


def config_of(rank: int = 4, **more: Any) -> bytes:
    """`adapter_config.json`."""
    return json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 8, **more}).encode()


def weights_of(
    value: float = 0.5, rank: int = 4, linears: Mapping[str, tuple[int, int]] = LINEARS
) -> bytes:
    """`adapter_model.safetensors`, all of it this value."""
    tensors = {}
    for name, (inputs, outputs) in linears.items():
        for matrix, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
            key = f"base_model.model.{name}.{matrix}.weight"
            tensors[key] = np.full(shape, value, np.float32)
    return save(tensors)
