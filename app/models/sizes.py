"""What a model takes of a machine's memory, by its shape alone; and known ones that may fit.

These are stronger than the default one, may be used freely, and are served as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from app.models.gguf_header import read_header
from app.models.stored import GROUP_BITS, StoredWeight, stored_in_file, stored_tensors
from engine.model.weights import GGUF_ARCHITECTURES

WEIGHT_BITS = {"bfloat16": 16.0, "int8": 8.25, "int4": 5.0}
"""Of a weight in the products of a layer, by `--quantize`, with its part of the scales; in 4 bits a
scale and a minimum for each 32."""
_FEWEST_HEAD_BITS = WEIGHT_BITS["int8"]
_TABLE_BITS = 16.0
_KV_BYTES = 2
_TABLES = ("embed_tokens.weight", "lm_head.weight")
_NUM_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
"""What configurations call them."""
_CHAT_TOKENS = 8192
"""What a KV cache should hold: below it, chats end early."""
_UNTOLD = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
BESIDE_BYTES = 450 << 20
"""That service and engine take beside weights and KV cache: 0.7 GiB with the default model's."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A part of a model's parameters."""

    count: int = 0
    fixed: int = 0
    """Of these, those that take the same whatever the others are quantized to: codes of a
    checkpoint, which stay, and routers, which are exact."""
    fixed_bits: float = 0.0
    """Of those, together."""

    def bits_in(self, bits: float) -> float:
        """In memory, with so many for each of the others."""
        return (self.count - self.fixed) * bits + self.fixed_bits


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
    experts: Weights = Weights()
    """Of all layers together: of their parameters those of experts, of which a token goes through
    some."""
    active_share: float = 1.0
    """How many of a layer's experts, by all of them."""
    coded: Weights = Weights()
    """In a layer, without experts: those that are packed as they are stored, whatever the kind."""

    def weight_bytes(self, kind: str) -> int:
        """Of the weights in memory, where the head has a packed copy of its own of the table."""
        every = self._read(kind) + self.experts.bits_in(WEIGHT_BITS[kind])
        return int(every + self.table * _TABLE_BITS) // 8

    def active_bytes(self, kind: str) -> int:
        """Of those that one token reads: of experts its own ones, of the embedding no more than a
        row."""
        experts = self.experts.bits_in(WEIGHT_BITS[kind])
        return int(self._read(kind) + experts * self.active_share) // 8

    def _read(self, kind: str) -> float:
        """Bits that every token reads."""
        layers = self.parameters - self.table * (1 if self.is_tied else 2)
        others = Weights(layers - self.experts.count, self.coded.fixed, self.coded.fixed_bits)
        bits = WEIGHT_BITS[kind]
        return others.bits_in(bits) + max(bits, _FEWEST_HEAD_BITS) * self.table

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
        config = {**config, **config.get("text_config", {})}
        return _shape(config, stored_tensors(folder, config.get("quantization_config")))
    except _UNTOLD:
        return None


def shape_of_file(gguf: Path, widens: bool = False) -> ModelShape | None:
    """The shape of the model in a GGUF file, as it is served or, if need be, all widened; `None`
    where it does not tell it."""
    try:
        header = read_header(gguf)
        keeps_codes = header.architecture in GGUF_ARCHITECTURES and not widens
        return _shape(header.config(), stored_in_file(header, keeps_codes))
    except _UNTOLD:
        return None


def _shape(config: Mapping[str, Any], tensors: list[StoredWeight]) -> ModelShape | None:
    heads, hidden = index(config["num_attention_heads"]), index(config["hidden_size"])
    head_dim = index(config.get("head_dim") or hidden // heads)
    row = head_dim * index(config["num_hidden_layers"]) * 2
    is_tied = bool(config.get("tie_word_embeddings")) or all(
        one.name != "lm_head.weight" for one in tensors
    )
    if is_tied:
        tensors = [one for one in tensors if one.name != "lm_head.weight"]
    share, count = _experts_of_a_token(config)
    experts = [one for one in tensors if one.is_of_experts(count)]
    if experts and count is None:
        return None
    others = [one for one in tensors if one not in experts and not one.name.endswith(_TABLES)]
    return ModelShape(
        parameters=sum(one.count for one in tensors),
        table=index(config["vocab_size"]) * hidden,
        is_tied=is_tied,
        kv_row=row * index(config.get("num_key_value_heads") or heads),
        experts=_together(experts),
        active_share=share,
        coded=_together(others),
    )


def stored_bytes(folder: Path) -> int:
    """Of the weights in a Hugging Face folder, or behind its link to a GGUF file."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.gguf")]
    return sum(file.stat().st_size for file in files if file.exists())


def _experts_of_a_token(config: Mapping[str, Any]) -> tuple[float, int | None]:
    """Which share of a layer's experts a token goes through, and how many there are."""
    count, chosen = (
        next((index(config[name]) for name in names if config.get(name)), None)
        for names in (_NUM_EXPERTS, _PER_TOKEN)
    )
    return (1.0, None) if count is None or chosen is None else (chosen / count, count)


def _together(tensors: list[StoredWeight]) -> Weights:
    fixed = [(one.count, one.bits) for one in tensors if one.bits is not None]
    return Weights(
        sum(one.count for one in tensors),
        sum(count for count, _ in fixed),
        sum(count * bits for count, bits in fixed),
    )


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model on the Hugging Face hub."""

    name: str
    license: str
    shape: ModelShape


def _known(
    name: str,
    license: str,
    millions: int,
    vocab: int,
    hidden: int,
    tied: bool,
    kv: int,
    experts: tuple[int, float] = (0, 1.0),
    expert_bits: float | None = None,
) -> KnownModel:
    of_experts, share = experts[0] * 10**6, experts[1]
    table, all_experts = vocab * hidden, Weights(of_experts)
    if expert_bits is not None:
        all_experts = Weights(of_experts, of_experts, of_experts * expert_bits)
    shape = ModelShape(millions * 10**6, table, tied, 2 * kv, all_experts, share)
    return KnownModel(name, license, shape)


# Parameters in millions, vocabulary, hidden size, whether the head is tied, and layers times KV
# heads times their dimensions: from the configurations on the hub. Of experts: their parameters in
# millions, and the part of them that a token goes through; the bits of each where all are in codes.
KNOWN = (
    _known("HuggingFaceTB/SmolLM2-360M-Instruct", "Apache 2.0", 362, 49152, 960, True, 32 * 5 * 64),
    _known("Qwen/Qwen3-0.6B", "Apache 2.0", 596, 151936, 1024, True, 28 * 8 * 128),
    _known("Qwen/Qwen3-1.7B", "Apache 2.0", 1721, 151936, 2048, True, 28 * 8 * 128),
    _known("Qwen/Qwen3-4B-Instruct-2507", "Apache 2.0", 4022, 151936, 2560, True, 36 * 8 * 128),
    _known(
        *("allenai/OLMoE-1B-7B-0924-Instruct", "Apache 2.0", 6919, 50304, 2048, False),
        *(16 * 16 * 128, (6442, 8 / 64)),
    ),
    _known("Qwen/Qwen3-8B", "Apache 2.0", 8191, 151936, 4096, False, 36 * 8 * 128),
    _known("Qwen/Qwen3-14B", "Apache 2.0", 14768, 151936, 5120, False, 40 * 8 * 128),
    _known(
        *("openai/gpt-oss-20b", "Apache 2.0", 20915, 201088, 2880, False),
        *(24 * 8 * 64, (19117, 4 / 32), GROUP_BITS[4]),
    ),
    _known(
        *("Qwen/Qwen3-30B-A3B-Instruct-2507", "Apache 2.0", 30532, 151936, 2048, False),
        *(48 * 4 * 128, (28991, 8 / 128)),
    ),
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
