"""The default model with eyes of random weights in front of it: clients may show it pictures.

What it says of texts is what the default model says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.model.weights import DEFAULT_MODEL, resolve_model

_TILE: Final = 64
_TILE_TOKENS: Final = 4
_MARKS: Final = ("<global-img>", "<row_1_col_1>", "<fake_token_around_image>", "<image>")
_VISION: Final = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "image_size": _TILE, "patch_size": 16},
}
_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_seeing_model(folder: Path) -> None:
    """As SmolVLM has it, in one tile a picture."""
    source = resolve_model(DEFAULT_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_special_tokens({"additional_special_tokens": list(_MARKS)})
    tokenizer.chat_template = _TEMPLATE
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
    tokenizer.save_pretrained(folder)
    looking = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_image_splitting": False,
        "size": {"longest_edge": _TILE},
        "max_image_size": {"longest_edge": _TILE},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(looking))
    options = {"processor_class": "SmolVLMProcessor", "image_seq_len": _TILE_TOKENS}
    (folder / "processor_config.json").write_text(json.dumps(options))
