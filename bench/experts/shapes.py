"""Models of experts of known shapes with random weights: as a folder, one file a layer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

_EMBEDDING_SCALE: Final = 0.0002
"""So little that a tied head does not find the last token again, and say it for ever."""
_SHARPNESS: Final = 4.0
"""Of queries and keys: attention to all tokens alike would let every prompt have one answer."""
_POSITIONS: Final = 4096
_PUBLISHED: Final = {
    ".block_sparse_moe.router.": ".block_sparse_moe.router.layer.",
    ".block_sparse_moe.experts.gate_up_proj": ".block_sparse_moe.input_linear.weight",
    ".block_sparse_moe.experts.down_proj": ".block_sparse_moe.output_linear.weight",
}
"""What Granite's modules are called in its checkpoints, which older releases of `transformers` (and
so OpenVINO's export) look for."""


@dataclass(frozen=True)
class Shape:
    """A family of `transformers`, and what its configuration is told."""

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    num_experts: int
    used_experts: int
    expert_size: int
    others: dict[str, Any]

    def config(self, num_layers: int, **tokens: Any) -> PretrainedConfig:
        """With as many layers as are wanted; `tokens` are what it says of the vocabulary."""
        experts = "num_experts" if self.family == "olmoe" else "num_local_experts"
        given = {
            "num_hidden_layers": num_layers,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "intermediate_size": self.expert_size,
            experts: self.num_experts,
            "num_experts_per_tok": self.used_experts,
            "max_position_embeddings": _POSITIONS,
        }
        return AutoConfig.for_model(self.family, **given | self.others | tokens)


SHAPES: Final = {
    "granite": Shape(
        family="granitemoe",
        num_layers=24,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=8,
        num_experts=32,
        used_experts=8,
        expert_size=512,
        others={
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.015625,
            "residual_multiplier": 0.22,
            "logits_scaling": 6.0,
            "tie_word_embeddings": True,
        },
    ),
    "olmoe": Shape(
        family="olmoe",
        num_layers=16,
        hidden_size=2048,
        num_heads=16,
        num_kv_heads=16,
        num_experts=64,
        used_experts=8,
        expert_size=1024,
        others={},
    ),
}
"""Granite 3.1 1B-A400M and OLMoE 1B-7B."""


class Configures(Protocol):
    """What has a configuration for so many layers; `tokens` say what its vocabulary is."""

    def config(self, num_layers: int, **tokens: Any) -> PretrainedConfig:
        """Of a model."""
        ...


def write_folder(folder: Path, shape: Configures, num_layers: int, tokenizer_of: Path) -> None:
    """Configuration, weights in bfloat16, and the tokenizer and chat template of another folder.

    Matrices keep the size of what goes through them; no more than a layer is in memory.
    """
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    tokenizer.save_pretrained(folder)
    config = shape.config(
        num_layers,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    config.dtype = torch.bfloat16
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    files: dict[str, list[tuple[str, torch.Size]]] = {}
    for name, values in model.named_parameters():
        held = files.setdefault(f"{_layer(name)}.safetensors", [])
        held.append((_published(name), values.shape))
    for number, (file, held) in enumerate(files.items()):
        source = torch.Generator().manual_seed(number)
        tensors = {name: _random(name, size, source) for name, size in held}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    places = {name: file for file, held in files.items() for name, _ in held}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def read_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The parameters by name, as the modules have them, one after the other."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for file in dict.fromkeys(index.values()):
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield _as_modules(name), opened.get_tensor(name)


def _published(name: str) -> str:
    for module, stored in _PUBLISHED.items():
        name = name.replace(module, stored)
    return name


def _as_modules(name: str) -> str:
    for module, stored in _PUBLISHED.items():
        name = name.replace(stored, module)
    return name


def _layer(name: str) -> str:
    parts = name.split(".")
    return f"layer-{parts[2]}" if parts[1] == "layers" else "rest"


def _random(name: str, size: torch.Size, source: torch.Generator) -> Tensor:
    sharpness = _SHARPNESS if ".q_" in name or ".k_" in name else 1.0
    if len(size) == 1:
        return torch.full(size, math.sqrt(sharpness), dtype=torch.bfloat16)
    scale = _EMBEDDING_SCALE if "embed_tokens" in name else sharpness / math.sqrt(size[-1])
    return torch.empty(size, dtype=torch.bfloat16).normal_(0, scale, generator=source)
