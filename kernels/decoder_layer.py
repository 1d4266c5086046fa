"""What one decoder layer computes with, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.linear import Linear


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm: what it multiplies by, any offset included, and its epsilon."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary tables, float32 [num_positions, rotary_dim / 2], any scaling included."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """All of a layer but its products."""

    num_heads: int
    num_kv_heads: int
    scale: float
    sliding_window: int | None
    softcap: float | None
    rotation: Rotation
    before_attention: Norm
    after_attention: Norm | None
    before_mlp: Norm
    after_mlp: Norm | None
    query_norm: Norm | None
    """Of each head; with the epsilon of `key_norm`, if there are both."""
    key_norm: Norm | None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A layer as those of Llama and its like: attention, then a gated feed-forward network."""

    options: LayerOptions
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
