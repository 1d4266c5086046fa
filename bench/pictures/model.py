"""A model of SmolVLM-500M's shape and of random weights, in a folder as a hub has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.model.weights import DEFAULT_MODEL, resolve_model

TILE: Final = 512
"""Pixels of a side of a picture's parts."""
TILE_TOKENS: Final = 64
_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_model(folder: Path) -> None:
    """The shape of SmolVLM-500M-Instruct."""
    kind: Any = CONFIG_MAPPING["smolvlm"]
    text = CONFIG_MAPPING["llama"](
        vocab_size=49_280,
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )
    vision = {
        **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
        **{"num_attention_heads": 12, "image_size": TILE, "patch_size": 16},
    }
    config = kind(text_config=text, vision_config=vision, scale_factor=4, image_token_id=49_190)
    torch.manual_seed(0)
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=2)
    model.save_pretrained(folder)
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["<global-img>", *rows, "<fake_token_around_image>", "<image>"]
    save_processor(folder, tokenizer_with(marks), TILE, TILE_TOKENS, most_tiles=4)


def tokenizer_with(marks: Sequence[str]) -> PreTrainedTokenizerBase:
    """The default model's, behind whose tokens are these, and which writes pictures."""
    tokenizer: PreTrainedTokenizerBase
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL))
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def save_processor(
    folder: Path, tokenizer: PreTrainedTokenizerBase, tile: int, tile_tokens: int, most_tiles: int
) -> None:
    """What a folder has beside weights: pictures are cut into tiles of `tile` pixels, at most so
    many side by side, where that is more than one, each of `tile_tokens` tokens.
    """
    tokenizer.save_pretrained(folder)
    config = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_image_splitting": most_tiles > 1,
        "size": {"longest_edge": most_tiles * tile},
        "max_image_size": {"longest_edge": tile},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    options = {"processor_class": "SmolVLMProcessor", "image_seq_len": tile_tokens}
    (folder / "processor_config.json").write_text(json.dumps(options))
