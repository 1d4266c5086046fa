"""A decoder layer's small operations by the compiled library: one call each, nothing in between."""

from __future__ import annotations

from struct import Struct

import torch
from torch import Tensor

from kernels.kv_format import head_size
from kernels.native import library
from kernels.native.attention import holds_codes
from kernels.native.library import TYPES
from kernels.types import Activation

_LONGEST_HEAD = 1024

_NORM = Struct("=4q4q2qd")
"""`pw_norm` of `layers.h`, field by field."""

_ROTATION = Struct("=9q6q5q4qd")
"""`pw_rotation`."""

_GATING = Struct("=2q3q2q")
"""`pw_gating`."""

ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


def add_rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.layers.add_rms_norm`."""
    num_tokens, dim = residual.shape
    output = torch.empty_like(residual)
    _add_rms_norm(
        _NORM.pack(
            residual.data_ptr(),
            0 if update is None else update.data_ptr(),
            weight.data_ptr(),
            output.data_ptr(),
            residual.stride(0),
            0 if update is None else update.stride(0),
            num_tokens,
            dim,
            TYPES[residual.dtype],
            weight.dtype == torch.float32,
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
    block_size, head_dim = kv.shape[3], head_size(kv)
    assert head_dim <= _LONGEST_HEAD
    num_tokens = len(qkv)
    block, value, head, token, _ = kv.stride()
    query = qkv.new_empty(num_tokens, num_heads, head_dim)
    _rotate_and_write(
        _ROTATION.pack(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            positions.data_ptr(),
            slots.data_ptr(),
            kv.data_ptr(),
            query.data_ptr(),
            0 if query_weight is None else query_weight.data_ptr(),
            0 if key_weight is None else key_weight.data_ptr(),
            qkv.stride(0),
            block,
            value,
            head,
            token,
            block_size,
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            cos.shape[1],
            TYPES[qkv.dtype],
            holds_codes(kv, qkv.dtype),
            query_weight is not None and query_weight.dtype == torch.float32,
            key_weight is not None and key_weight.dtype == torch.float32,
            eps,
        )
    )
    return query


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """See `kernels.layers.gate`."""
    num_tokens, width = gate_up.shape
    output = gate_up.new_empty(num_tokens, width // 2)
    _gate(
        _GATING.pack(
            gate_up.data_ptr(),
            output.data_ptr(),
            gate_up.stride(0),
            num_tokens,
            width // 2,
            TYPES[gate_up.dtype],
            ACTIVATIONS[activation],
        )
    )
    return output


_add_rms_norm = library.function("pw_add_rms_norm", library.text)
_rotate_and_write = library.function("pw_rotate_and_write", library.text)
_gate = library.function("pw_gate", library.text)
