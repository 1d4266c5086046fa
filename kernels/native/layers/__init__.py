"""A decoder layer's small operations by the compiled library: one call each, nothing in between."""

from __future__ import annotations

from struct import Struct

import torch
from torch import Tensor

from kernels.kv_format import head_size
from kernels.native import library
from kernels.native.attention import holds_codes
from kernels.native.library import TYPES, pointer
from kernels.types import Activation

_LONGEST_HEAD = 1024

_NORM = Struct("=5q5q3qd")
"""`pw_norm` of `layers.h`, field by field."""

_ROTATION = Struct("=9q6q5q4qd")
"""`pw_rotation`."""

_GATING = Struct("=2q3q3q")
"""`pw_gating`."""

ACTIVATIONS: dict[Activation, int] = {
    "silu": 0,
    "gelu_tanh": 1,
    "relu2": 2,
    "clamped_swiglu": 3,
}


def add_rms_norm(
    residual: Tensor,
    update: Tensor | None,
    weight: Tensor,
    eps: float,
    bias: Tensor | None = None,
    centres: bool = False,
) -> Tensor:
    """See `kernels.layers.add_rms_norm`."""
    num_tokens, dim = residual.shape
    assert bias is None or (centres and bias.dtype == weight.dtype)
    output = residual.new_empty(num_tokens, dim)
    _add_rms_norm(
        _NORM.pack(
            *map(pointer, (residual, update, weight, bias, output)),
            residual.stride(0),
            0 if update is None else update.stride(0),
            dim,
            num_tokens,
            dim,
            TYPES[residual.dtype],
            weight.dtype == torch.float32,
            centres,
            eps,
        )
    )
    return output


def rotate_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    kv: Tensor,
    slots: Tensor,
    num_heads: int,
    num_kv_heads: int,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See `kernels.layers.rotate_and_write`."""
    num_tokens, head_dim = len(qkv), head_size(kv)
    assert head_dim <= _LONGEST_HEAD
    query = qkv.new_empty(num_tokens, num_heads, head_dim)
    weights = (query_weight, key_weight)
    _rotate_and_write(
        _ROTATION.pack(
            *map(pointer, (qkv, cos, sin, positions, slots, kv, query, *weights)),
            qkv.stride(0),
            *kv.stride()[:4],
            kv.shape[3],
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            cos.shape[1],
            TYPES[qkv.dtype],
            holds_codes(kv, qkv.dtype),
            *(weight is not None and weight.dtype == torch.float32 for weight in weights),
            eps,
        )
    )
    return query


def gate(gate_up: Tensor, activation: Activation, is_plain: bool = False) -> Tensor:
    """See `kernels.layers.gate`."""
    num_tokens, width = gate_up.shape
    inter = width if is_plain else width // 2
    output = gate_up.new_empty(num_tokens, inter)
    _gate(
        _GATING.pack(
            gate_up.data_ptr(),
            output.data_ptr(),
            gate_up.stride(0),
            num_tokens,
            inter,
            TYPES[gate_up.dtype],
            ACTIVATIONS[activation],
            is_plain,
        )
    )
    return output


_add_rms_norm = library.function("pw_add_rms_norm", library.text)
_rotate_and_write = library.function("pw_rotate_and_write", library.text)
_gate = library.function("pw_gate", library.text)
