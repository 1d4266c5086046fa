"""A model of Qwen3.5-0.8B's shape, but for its vocabulary, which is the default model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from transformers import AutoConfig, PretrainedConfig


@dataclass(frozen=True)
class Hybrid:
    """24 layers, 1,024 wide, of which each fourth attends and the others are Gated DeltaNet."""

    family: str = "qwen3_5_text"
    num_layers: int = 24

    def config(self, num_layers: int, **tokens: Any) -> PretrainedConfig:
        """With so many layers; `tokens` are what it says of the vocabulary."""
        return AutoConfig.for_model(
            self.family,
            num_hidden_layers=num_layers,
            hidden_size=1024,
            intermediate_size=3584,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=256,
            linear_num_key_heads=16,
            linear_num_value_heads=16,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            **tokens,
        )


QWEN: Final = Hybrid()
