"""Folders of tiny models that see, with their processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.engine.pictures.seeing_models import FAMILIES as FAMILIES
from tests.engine.pictures.seeing_models import IMAGE, MARK

_WORDS = [f"w{number}" for number in range(97)]
_PLACEHOLDERS = {
    **dict.fromkeys(("idefics3", "smolvlm", "llava", "llava_onevision"), "<image>"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"), "<|image_pad|>"),
    **{"internvl": "<IMG_CONTEXT>", "mistral3": "[IMG]"},
    **{"gemma3": "<image_soft_token>", "gemma4": "<|image|>"},
}
_MARKS = {
    **{one: ["<fake_token_around_image>", "<global-img>"] for one in ("idefics3", "smolvlm")},
    "internvl": ["<img>", "</img>"],
    "mistral3": ["[IMG_BREAK]", "[IMG_END]"],
    "gemma3": ["<start_of_image>", "<end_of_image>"],
    "gemma4": ["<|image>", "<image|>"],
}
_SMALL = {"height": 16, "width": 16}
_PROCESSORS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "idefics3": (
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}},
        {"image_seq_len": 4},
    ),
    "llava": (
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 16}, "crop_size": _SMALL},
        {
            "patch_size": 4,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
    ),
    "llava_onevision": (
        "LlavaOnevisionImageProcessor",
        {"size": _SMALL, "image_grid_pinpoints": [[16, 16], [16, 32], [32, 16]]},
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
    "gemma3": ("Gemma3ImageProcessor", {"size": _SMALL}, {"image_seq_length": 16}),
    "gemma4": (
        "Gemma4ImageProcessor",
        {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70},
        {"image_seq_length": 70},
    ),
    "internvl": (
        "GotOcr2ImageProcessor",
        {"size": _SMALL, "crop_to_patches": True, "max_patches": 4},
        {"image_seq_length": 4},
    ),
    "mistral3": (
        "PixtralImageProcessor",
        {"size": {"longest_edge": 32}, "patch_size": {"height": 4, "width": 4}},
        {"patch_size": 4, "spatial_merge_size": 2},
    ),
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"),
        (
            "Qwen2VLImageProcessor",
            {
                "patch_size": 4,
                "merge_size": 2,
                "size": {"shortest_edge": 64, "longest_edge": 1024},
            },
            {},
        ),
    ),
}
_PROCESSORS["smolvlm"] = (
    "SmolVLMImageProcessor",
    _PROCESSORS["idefics3"][1],
    _PROCESSORS["idefics3"][2],
)
_CLASSES = {
    "mistral3": "PixtralProcessor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "SmolVLMProcessor",
    "llava": "LlavaProcessor",
    "llava_onevision": "LlavaOnevisionProcessor",
    "internvl": "InternVLProcessor",
    "gemma3": "Gemma3Processor",
    "gemma4": "Gemma4Processor",
}


_SPECIAL = {
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
    "gemma3": {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    },
    "gemma4": {
        **{"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"},
        **{"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"},
    },
}
"""What tokenizers know of them by names of their own."""


_TEMPLATE = """\
{%- for message in messages %}
{{- 'w10 ' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{ 'PLACE' }}{% else %}{{ ' ' + part.text + ' ' }}{% endif %}
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ ' w11 ' }}{% endif %}
"""
"""Of words, each of which is a token."""


def save_processor(family: str, folder: Path) -> None:
    """What a hub's folder has for it, beside a model that `seeing_model` has saved there."""
    words = list(_WORDS)
    words[0], words[1], words[2] = "<pad>", "<s>", "</s>"
    words[IMAGE] = _PLACEHOLDERS[family]
    marks = _MARKS.get(family, [])
    for place, mark in enumerate(marks, MARK):
        words[place] = mark
    rows = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    words[3:7] = rows
    words[7] = "\n"
    own = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "w9"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own.add_special_tokens([words[IMAGE], *marks, *rows, "\n"])
    special = dict(_SPECIAL.get(family, {}))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=own,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="w9",
        extra_special_tokens=special,
    )
    tokenizer.chat_template = _TEMPLATE.replace(
        "PLACE", marks[0] if family == "gemma3" else words[IMAGE]
    )
    tokenizer.save_pretrained(folder)
    kind, fields, options = _PROCESSORS[family]
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": kind, **fields})
    )
    if options:
        said = {"processor_class": _CLASSES[family], **options}
        (folder / "processor_config.json").write_text(json.dumps(said))
