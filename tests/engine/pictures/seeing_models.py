"""Tiny models that see, of random weights, pictures for them, and what they say of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForImageTextToText, GenerationConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.api import EngineRequest, PictureHeader, PictureInput, PictureUse
from engine.serve.core import EngineCore
from tests.engine.model.tiny_families import tiny_config
from tests.engine.simulation import make_request

IMAGE = 90
MARK = 91
EOS = 2
PIECE_BYTES = 5000
_VISION: dict[str, Any] = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_layers": 2},
    **{"num_attention_heads": 2, "num_heads": 2, "depth": 2, "patch_size": 4, "image_size": 16},
    **{"out_hidden_size": 32, "projection_dim": 32, "head_dim": 16},
}
_OWN_VISION: dict[str, dict[str, Any]] = {
    "gemma4": {
        **{"patch_size": 4, "pooling_kernel_size": 2, "position_embedding_size": 64},
        **{"num_key_value_heads": 2, "rms_norm_eps": 1e-6},
    },
    "internvl": {"patch_size": [4, 4], "image_size": [16, 16]},
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2},
    "qwen2_5_vl": {"window_size": 16, "fullatt_block_indexes": [1]},
    "qwen3_vl": {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
    "qwen3_5": {"num_position_embeddings": 16},
}
_HEARING = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_HEARING |= {"subsampling_conv_channels": [8, 4], "output_proj_dims": 32}  # type: ignore[dict-item]
_OWN: dict[str, dict[str, Any]] = {
    "gemma3": {"mm_tokens_per_image": 16},
    "gemma4": {"vision_soft_tokens_per_image": 8, "audio_config": _HEARING},
    "idefics3": {"scale_factor": 2},
    "smolvlm": {"scale_factor": 2},
    "llava_onevision": {"image_grid_pinpoints": [[16, 16], [16, 32], [32, 16]]},
}
_TEXT = {
    **{"idefics3": "llama", "smolvlm": "llama", "llava": "llama", "mistral3": "mistral"},
    **{"internvl": "qwen2", "llava_onevision": "qwen2"},
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3", "gemma4")),
}
FAMILIES = sorted(_TEXT)
_OWN_TEXT: dict[str, dict[str, Any]] = {"gemma4": {"use_bidirectional_attention": "vision"}}
_HAS_PARTS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")


@dataclass(frozen=True)
class Shown:
    """A picture, as a model's processor would make it."""

    token_ids: list[int]
    inputs: dict[str, np.ndarray[Any, Any]]
    name: bytes = field(init=False)

    def __post_init__(self) -> None:
        digest = blake2b(digest_size=32)
        for name, array in self.inputs.items():
            digest.update(name.encode() + repr(array.shape).encode() + array.tobytes())
        object.__setattr__(self, "name", digest.digest())

    @property
    def pieces(self) -> Iterator[bytes]:
        """As a service brings it."""
        inputs = tuple(
            PictureInput(name, str(array.dtype), array.shape) for name, array in self.inputs.items()
        )
        yield msgspec.json.encode(PictureHeader(inputs))
        data = b"".join(array.tobytes() for array in self.inputs.values())
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    def bring(self, core: EngineCore) -> None:
        """As a service does that has been asked for it."""
        for number, piece in enumerate(self.pieces):
            core.bring(self.name, piece, is_first=number == 0)
        core.bring(self.name, b"", is_last=True)


def seeing_model(family: str, folder: Path, **text: Any) -> PreTrainedModel:
    """A tiny one of a family, kept in `folder`."""
    default: Any = CONFIG_MAPPING[family]()
    seeing: Any = default.vision_config or CONFIG_MAPPING[f"{family}_vision"]()
    kind, known = type(seeing), vars(seeing)
    sizes = {name: size for name, size in _VISION.items() if name in known}
    vision = kind(**(sizes | _OWN_VISION.get(family, {})))
    own_text = tiny_config(
        _TEXT[family] or family, **(_parted(family) | _OWN_TEXT.get(family, {}) | text)
    )
    names = [one for one in ("image_token_id", "image_token_index") if one in vars(default)]
    config = type(default)(
        text_config=own_text.to_dict() if _TEXT[family] is None else own_text,
        vision_config=vision.to_dict(),
        **dict.fromkeys(names, IMAGE),
        **_OWN.get(family, {}),
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():  # as large as embeddings, or nothing that is seen would count
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not name.startswith(("lm_head", "model.language_model")):
                parameter.mul_(4)
                if not parameter.any():  # as Gemma 3's begins
                    parameter.normal_()
        model.get_input_embeddings().weight[IMAGE] = 0  # so that none is ever drawn
    model.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=0)
    model.save_pretrained(folder)
    return model


def _parted(family: str) -> dict[str, Any]:
    if family not in _HAS_PARTS:
        return {}
    sections = {"mrope_section": [2, 1, 1]}
    if family in ("qwen3_vl", "qwen3_5"):
        sections = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}  # type: ignore[dict-item]
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **sections}}


def picture(family: str, seed: int = 0, size: int = 1) -> Shown:
    """A random one, of `size` tiles or as large."""
    rng = np.random.default_rng(seed)

    def pixels(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    if family in ("idefics3", "smolvlm"):
        mask = np.ones((1, size, 16, 16), np.int64)
        inputs = {"pixel_values": pixels(1, size, 3, 16, 16), "pixel_attention_mask": mask}
        return Shown([MARK, *([MARK, IMAGE, IMAGE, IMAGE, IMAGE] * size), MARK], inputs)
    if family in _HAS_PARTS:
        height, width = 4, 4 * size
        count = height * width
        inputs = {
            "pixel_values": pixels(count, 3 * 2 * 4 * 4),
            "image_grid_thw": np.array([[1, height, width]]),
        }
        return Shown([IMAGE] * (count // 4), inputs)
    if family == "gemma3":
        inputs = {"pixel_values": pixels(size, 3, 16, 16)}
        return Shown([MARK, *[IMAGE] * 16, MARK] * size, inputs)
    if family == "gemma4":  # patches, of which there are at most 32, in columns of four
        positions = np.full((1, 32, 2), -1)
        positions[0, : 16 * size] = [(x, y) for y in range(4) for x in range(4 * size)]
        inputs = {"pixel_values": pixels(1, 32, 48), "image_position_ids": positions}
        return Shown([MARK, *[IMAGE] * (4 * size), MARK], inputs)
    if family == "internvl":
        return Shown([IMAGE] * (4 * size), {"pixel_values": pixels(size, 3, 16, 16)})
    if family == "llava":
        return Shown([IMAGE] * 16, {"pixel_values": pixels(1, 3, 16, 16)})
    if family == "mistral3":
        sizes = np.array([[16, 16]])
        return Shown(
            [IMAGE, IMAGE, MARK, IMAGE, IMAGE, MARK],
            {"pixel_values": pixels(1, 3, 16, 16), "image_sizes": sizes},
        )
    assert family == "llava_onevision"
    # The whole, then a tile, whose rows end with a new line, behind all of it.
    inputs = {"pixel_values": pixels(1, 2, 3, 16, 16), "image_sizes": np.array([[16, 16]])}
    return Shown([IMAGE] * (16 + 4 * 5), inputs)


Part = int | Shown


def request(name: str, parts: list[Part], max_tokens: int = 12, **options: Any) -> EngineRequest:
    """Of tokens and pictures, in their order."""
    prompt: list[int] = []
    uses = []
    for part in parts:
        if isinstance(part, Shown):
            uses.append(PictureUse(part.name, len(prompt), len(part.token_ids)))
            prompt += part.token_ids
        else:
            prompt.append(part)
    made = make_request(name, prompt, max_tokens)
    sampling = msgspec.structs.replace(made.sampling, stop_token_ids=(EOS,), logprobs=0)
    return msgspec.structs.replace(
        made, **{"sampling": sampling, "pictures": tuple(uses)} | options
    )


@torch.inference_mode()
def generated(
    model: PreTrainedModel, family: str, parts: list[Part], max_tokens: int, **options: Any
) -> Any:
    """What `generate()` makes of tokens and pictures; greedy, unless `options` say otherwise."""
    ids = torch.tensor([request("", parts, 1).prompt])
    shown = [part for part in parts if isinstance(part, Shown)]
    inputs: dict[str, Any] = {}
    for name in shown[0].inputs if shown else ():
        axis = 1 if family in ("idefics3", "smolvlm") else 0
        arrays = [one.inputs[name] for one in shown]
        inputs[name] = torch.from_numpy(np.concatenate(arrays, axis))
    if family in (*_HAS_PARTS, "gemma4"):
        inputs["mm_token_type_ids"] = (ids == IMAGE).int()
    if family == "gemma3":
        inputs["token_type_ids"] = (ids == IMAGE).int()
    return model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        **inputs,
        **options,
    )


def says(model: PreTrainedModel, family: str, parts: list[Part], max_tokens: int = 12) -> list[int]:
    """What the model goes on with, greedily, as `transformers` has it."""
    size = len(request("", parts, 1).prompt)
    said: list[int] = generated(model, family, parts, max_tokens).sequences[0, size:].tolist()
    return said


def logprobs(
    model: PreTrainedModel, family: str, parts: list[Part], max_tokens: int = 12
) -> list[float]:
    """Of these tokens."""
    found = generated(model, family, parts, max_tokens, output_logits=True)
    return [float(logits[0].log_softmax(-1).max()) for logits in found.logits]
