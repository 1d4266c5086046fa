"""A decoder layer's small operations in plain torch, in float32 or, for float64, in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.reference.attention import write_kv
from kernels.types import Activation


def add_rms_norm(
    residual: Tensor,
    update: Tensor | None,
    weight: Tensor,
    eps: float,
    bias: Tensor | None = None,
    centres: bool = False,
) -> Tensor:
    """See `kernels.layers.add_rms_norm`."""
    if update is not None:
        residual += update
    wide = _wide(residual)
    if centres:
        wide = wide - wide.mean(-1, keepdim=True)
    normed = functional.rms_norm(wide, wide.shape[-1:], weight.to(wide.dtype), eps)
    return (normed if bias is None else normed + bias).to(residual.dtype)


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
    heads = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, -1)
    query, key, value = heads.tensor_split((num_heads, num_heads + num_kv_heads), dim=1)
    if query_weight is not None:
        query = _rms_norm(query, query_weight, eps)
    if key_weight is not None:
        key = _rms_norm(key, key_weight, eps)
    turn = cos[positions, None], sin[positions, None]
    write_kv(_rotate(key, *turn), value, kv, slots)
    return _rotate(query, *turn)


def gate(gate_up: Tensor, activation: Activation, is_plain: bool = False) -> Tensor:
    """See `kernels.layers.gate`."""
    first, *second = _wide(gate_up).chunk(1 if is_plain else 2, dim=-1)
    if activation == "clamped_swiglu":
        first, second = first.clamp_max(7.0), [one.clamp(-7.0, 7.0).add_(1) for one in second]
        active = first * torch.sigmoid(1.702 * first)
    elif activation == "silu":
        active = functional.silu(first)
    elif activation == "gelu_tanh":
        active = functional.gelu(first, approximate="tanh")
    else:
        active = functional.relu(first).square()
    return (active if is_plain else active.mul_(*second)).to(gate_up.dtype)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = _wide(x)
    return functional.rms_norm(wide, x.shape[-1:], weight.to(wide.dtype), eps).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` is [num_tokens, heads, head_dim]; `cos` and `sin` are [num_tokens, 1, rotary_dim / 2]."""
    half = cos.shape[-1]
    wide = _wide(x)
    first, second, rest = wide.tensor_split((half, 2 * half), dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(turned, dim=-1).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
