"""The default model with eyes of random weights in front of it: clients may show it pictures.

What it says of texts is what the default model says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from bench.pictures.model import save_processor, tokenizer_with
from engine.model.weights import DEFAULT_MODEL, resolve_model

_TILE: Final = 64
_TILE_TOKENS: Final = 4
_MARKS: Final = ("<global-img>", "<row_1_col_1>", "<fake_token_around_image>", "<image>")
_VISION: Final = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "image_size": _TILE, "patch_size": 16},
}


def save_seeing_model(folder: Path) -> None:
    """As SmolVLM has it, in one tile a picture."""
    tokenizer = tokenizer_with(_MARKS)
    source = resolve_model(DEFAULT_MODEL)
    text: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    text.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    config = CONFIG_MAPPING["smolvlm"](
        text_config=text.config,
        vision_config=_VISION,
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids(_MARKS[-1]),
        tie_word_embeddings=text.config.tie_word_embeddings,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.model.text_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.generation_config = text.generation_config
    model.save_pretrained(folder)
    save_processor(folder, tokenizer, _TILE, _TILE_TOKENS, most_tiles=1)
