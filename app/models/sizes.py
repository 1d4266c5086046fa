"""What a model takes of a machine's memory, by its shape alone; and known ones that may fit.

These are stronger than the default one, may be used freely, and are served as they are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from engine.model.weights import GGUF_INDEX

WEIGHT_BITS = {"bfloat16": 16.0, "int8": 8.25, "int4": 5.0}
"""Of a weight in the products of a layer, by `--quantize`, with its part of the scales; in 4 bits a
scale and a minimum for each 32."""
_FEWEST_HEAD_BITS = WEIGHT_BITS["int8"]
_TABLE_BITS = 16.0
_KV_BYTES = 2
_MOST_HEADER_BYTES = 100_000_000
"""As the format has it."""
_CHAT_TOKENS = 8192
"""What a KV cache should hold: below it, chats end early."""
BESIDE_BYTES = 450 << 20
"""That service and engine take beside weights and KV cache: 0.7 GiB with the default model's."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the size of a decoder follows from."""

    parameters: int
    """A table that the head shares with the embedding counts once."""
    table: int
    """Of them in the embedding: vocabulary times hidden size."""
    is_tied: bool
    """Whether the head has the embedding's weights."""
    kv_row: int
    """Numbers that a token has in the KV cache: two of each dimension of each head and layer."""

    def weight_bytes(self, kind: str) -> int:
        """Of the weights in memory, where the head has a packed copy of its own of the table."""
        layers = self.parameters - self.table * (1 if self.is_tied else 2)
        bits = WEIGHT_BITS[kind]
        head = max(bits, _FEWEST_HEAD_BITS) * self.table
        return int(layers * bits + head + self.table * _TABLE_BITS) // 8

    @property
    def kv_token_bytes(self) -> int:
        """Of a token in a KV cache of 16 bits."""
        return self.kv_row * _KV_BYTES


def needed_bytes(weight_bytes: int, kv_token_bytes: int) -> int:
    """What a service takes that answers chats of usual length."""
    return weight_bytes + kv_token_bytes * _CHAT_TOKENS + BESIDE_BYTES


def shape_of(folder: Path) -> ModelShape | None:
    """The shape of the model in a Hugging Face folder; `None` where its files do not tell it."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        if "quantization_config" in config:
            return None  # codes are fewer than the weights that they stand for
        config = {**config, **config.get("text_config", {})}
        heads, hidden = index(config["num_attention_heads"]), index(config["hidden_size"])
        head_dim = index(config.get("head_dim") or hidden // heads)
        row = head_dim * index(config["num_hidden_layers"]) * 2
        shapes = _tensor_shapes(folder)
        is_tied = bool(config.get("tie_word_embeddings")) or "lm_head.weight" not in shapes
        return ModelShape(
            parameters=sum(
                index(math.prod(shape))
                for name, shape in shapes.items()
                if not (is_tied and name == "lm_head.weight")
            ),
            table=index(config["vocab_size"]) * hidden,
            is_tied=is_tied,
            kv_row=row * index(config.get("num_key_value_heads") or heads),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        return None


def stored_bytes(folder: Path) -> int:
    """Of the weights in a Hugging Face folder, or behind its link to a GGUF file."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.gguf")]
    return sum(file.stat().st_size for file in files if file.exists())


def _tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Of all weights, by name. Raises `OSError` or `ValueError` where they cannot be read."""
    if (folder / GGUF_INDEX).exists():
        weights = json.loads((folder / GGUF_INDEX).read_bytes())
        return {name: stored["shape"] for name, stored in weights.items()}
    shapes: dict[str, list[int]] = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, _MOST_HEADER_BYTES)))
        header.pop("__metadata__", None)
        shapes |= {name: tensor["shape"] for name, tensor in header.items()}
    if not shapes:
        raise ValueError("no weights")
    return shapes


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model on the Hugging Face hub."""

    name: str
    license: str
    shape: ModelShape


def _known(
    name: str, license: str, millions: int, vocab: int, hidden: int, tied: bool, kv: int
) -> KnownModel:
    return KnownModel(name, license, ModelShape(millions * 10**6, vocab * hidden, tied, 2 * kv))


# Parameters in millions, vocabulary, hidden size, whether the head is tied, and layers times KV
# heads times their dimensions: from the configurations on the hub.
KNOWN = (
    _known("HuggingFaceTB/SmolLM2-360M-Instruct", "Apache 2.0", 362, 49152, 960, True, 32 * 5 * 64),
    _known("Qwen/Qwen3-0.6B", "Apache 2.0", 596, 151936, 1024, True, 28 * 8 * 128),
    _known("Qwen/Qwen3-1.7B", "Apache 2.0", 1721, 151936, 2048, True, 28 * 8 * 128),
    _known("Qwen/Qwen3-4B-Instruct-2507", "Apache 2.0", 4022, 151936, 2560, True, 36 * 8 * 128),
    _known("Qwen/Qwen3-8B", "Apache 2.0", 8191, 151936, 4096, False, 36 * 8 * 128),
    _known("Qwen/Qwen3-14B", "Apache 2.0", 14768, 151936, 5120, False, 40 * 8 * 128),
    _known("Qwen/Qwen3-32B", "Apache 2.0", 32762, 151936, 5120, False, 64 * 8 * 128),
)
"""Ascending by size."""


def best_kind(shape: ModelShape, available: int) -> str | None:
    """The widest weights with which a service of that model fits into so many bytes."""
    for kind in WEIGHT_BITS:
        if needed_bytes(shape.weight_bytes(kind), shape.kv_token_bytes) <= available:
            return kind
    return None


def fitting(available: int) -> list[tuple[KnownModel, str]]:
    """The known models that fit into so many bytes, and how; ascending by size."""
    found = [(model, best_kind(model.shape, available)) for model in KNOWN]
    return [(model, kind) for model, kind in found if kind is not None]
