"""Models of random weights in the shapes of known ones, and what a step of them has to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only model; what a layer consists of is the same in both families."""

    family: str
    """As transformers names it."""
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    is_tied: bool
    """Whether the product with the vocabulary uses the embedding."""

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrix products."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def num_weights(self) -> int:
        """All of them, but for norms."""
        return self.layer_weights + (1 if self.is_tied else 2) * self.hidden * self.vocab

    def step_bytes(self, batch: int, context: float, item_bytes: int) -> float:
        """What a decode step reads: every product's weights, and the KV of every context."""
        weights = self.layer_weights + self.hidden * self.vocab
        kv = 2 * self.layers * self.kv_heads * self.head_dim * context
        return item_bytes * (weights + batch * kv)

    def prompt_flops(self, length: int) -> float:
        """Of a prompt's layers: products with weights, and causal attention."""
        attention = 2 * self.layers * self.heads * self.head_dim * length**2
        return 2 * self.layer_weights * length + attention

    def config(self) -> dict[str, Any]:
        """For `transformers.AutoConfig.for_model`."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "tie_word_embeddings": self.is_tied,
            "max_position_embeddings": 40960,
            "rope_theta": 500000.0,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


SHAPES = {
    "8b": Shape("llama", 128256, 4096, 14336, 32, 32, 8, 128, is_tied=False),
    "06b": Shape("qwen3", 151936, 1024, 3072, 28, 16, 8, 128, is_tied=True),
    "tiny": Shape("llama", 512, 64, 96, 2, 4, 2, 16, is_tied=True),
}
"""Those of Llama-3-8B and Qwen3-0.6B, and one that any machine can compute."""


def write_model(shape: Shape, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Make a model of random weights on `device`, and save it as transformers does."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(shape.family, **shape.config())
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
