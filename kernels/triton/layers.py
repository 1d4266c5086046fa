"""Triton: a decoder layer's small operations, each one pass over its data."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.arguments import HeadNorms, KvMemory, Rotation, memory_of
from kernels.triton.cache import first_head, heads_per_program, store_rows
from kernels.types import Activation

GATE_BLOCK = 1024


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
    output = torch.empty_like(residual)
    with torch.cuda.device(residual.get_device()):  # Triton launches on the current device
        add_and_norm[(num_tokens,)](
            output,
            residual,
            update,
            weight,
            bias,
            residual.stride(0),
            0 if update is None else update.stride(0),
            output.stride(0),
            eps,
            DIM=dim,
            CENTRES=centres,
            **norm_options(dim),
        )
    return output


def norm_options(dim: int) -> dict[str, int]:
    """What the launch of a norm over `dim` passes to the compiler."""
    return {"num_warps": 4 if dim <= 2048 else 8}


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
    num_tokens, all_heads = len(qkv), num_heads + 2 * num_kv_heads
    head_dim = qkv.shape[1] // all_heads
    query = qkv.new_empty((num_tokens, num_heads, head_dim))
    heads = heads_per_program(all_heads, head_dim)
    with torch.cuda.device(qkv.get_device()):  # Triton launches on the current device
        rotate_and_store[num_tokens, triton.cdiv(all_heads, heads)](
            query,
            qkv,
            qkv.stride(0),
            Rotation(cos, sin, cos.stride(0)),
            HeadNorms(query_weight, key_weight, eps),
            memory_of(kv),
            positions,
            slots,
            num_heads,
            num_kv_heads,
            HALF=cos.shape[1],
            BLOCK_SIZE=kv.shape[3],
            HEAD_DIM=head_dim,
            HEADS=heads,
        )
    return query


def gate(gate_up: Tensor, activation: Activation, is_plain: bool = False) -> Tensor:
    """See `kernels.layers.gate`."""
    num_tokens, width = gate_up.shape
    inter = width if is_plain else width // 2
    output = gate_up.new_empty((num_tokens, inter))
    with torch.cuda.device(gate_up.get_device()):  # Triton launches on the current device
        activate_and_multiply[num_tokens, triton.cdiv(inter, GATE_BLOCK)](
            output,
            gate_up,
            inter,
            gate_up.stride(0),
            ACTIVATION=activation,
            PLAIN=is_plain,
            BLOCK=GATE_BLOCK,
        )
    return output


@triton.jit
def add_and_norm(
    output_ptr,
    residual_ptr,
    update_ptr,  # or None
    weight_ptr,
    bias_ptr,  # or None
    residual_stride,
    update_stride,
    output_stride,
    eps,
    DIM: tl.constexpr,
    CENTRES: tl.constexpr,
):
    """One program: one token."""
    token = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, triton.next_power_of_2(DIM))
    inside = dims < DIM
    at = residual_ptr + token * residual_stride + dims
    x = tl.load(at, mask=inside, other=0.0)
    if update_ptr is not None:
        update = tl.load(update_ptr + token * update_stride + dims, mask=inside, other=0.0)
        x = (x.to(tl.float32) + update.to(tl.float32)).to(x.dtype)
        tl.store(at, x, mask=inside)
    weight = tl.load(weight_ptr + dims, mask=inside, other=0.0).to(tl.float32)
    wide = x.to(tl.float32)
    if CENTRES:
        wide = tl.where(inside, wide - tl.sum(wide) / DIM, 0.0)
    normed = wide * tl.rsqrt(tl.sum(wide * wide) / DIM + eps) * weight
    if bias_ptr is not None:
        normed += tl.load(bias_ptr + dims, mask=inside, other=0.0).to(tl.float32)
    to = output_ptr + token * output_stride + dims
    tl.store(to, normed.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate_and_store(
    query_ptr,
    qkv_ptr,
    qkv_stride,
    rotation: Rotation,
    norms: HeadNorms,
    kv: KvMemory,
    positions_ptr,
    slots_ptr,
    num_heads,
    num_kv_heads,
    HALF: tl.constexpr,  # of the rotated dimensions
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program: `HEADS` heads of one token, be they queries, keys or values."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, triton.next_power_of_2(HEAD_DIM))
    is_query = heads < num_heads
    is_key = (heads >= num_heads) & (heads < num_heads + num_kv_heads)
    is_value = (heads >= num_heads + num_kv_heads) & (heads < num_heads + 2 * num_kv_heads)
    inside = (is_query | is_key | is_value)[:, None] & (dims < HEAD_DIM)[None, :]
    # Each dimension's partner in the rotation is read again, from cache, rather than shuffled.
    partners = tl.where(dims < HALF, dims + HALF, dims - HALF)
    partners = tl.where(dims < 2 * HALF, partners, dims)
    row = qkv_ptr + token * qkv_stride + heads[:, None] * HEAD_DIM
    stored = tl.load(row + dims[None, :], mask=inside, other=0.0)
    x = stored.to(tl.float32)
    partner = tl.load(row + partners[None, :], mask=inside, other=0.0).to(tl.float32)
    if (norms.query_weight_ptr is not None) or (norms.key_weight_ptr is not None):
        shrink = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + norms.eps)[:, None]
        weight = head_weights(norms, shrink, is_query, is_key, dims, HEAD_DIM)
        other = head_weights(norms, shrink, is_query, is_key, partners, HEAD_DIM)
        # As in every other backend the norm's result is rounded before it is rotated.
        x = (x * weight).to(stored.dtype).to(tl.float32)
        partner = (partner * other).to(stored.dtype).to(tl.float32)

    cos, sin = turn(rotation, tl.load(positions_ptr + token), dims, HALF)
    turned = x * cos[None, :] + partner * sin[None, :]
    turned = tl.where(is_value[:, None], x, turned).to(stored.dtype)

    to = query_ptr + token * num_heads * HEAD_DIM + heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(to, turned, mask=is_query[:, None] & (dims < HEAD_DIM)[None, :])
    rows = first_head(kv, tl.load(slots_ptr + token), BLOCK_SIZE)
    kv_heads = tl.where(is_key, heads - num_heads, heads - num_heads - num_kv_heads)
    rows += kv_heads * kv.head_stride + tl.where(is_key, 0, kv.value_stride)
    turned = tl.where(inside, turned, 0.0)
    store_rows(rows, turned, is_key | is_value, HEAD_DIM)


@triton.jit
def turn(rotation: Rotation, position, dims, HALF: tl.constexpr):
    """What each dimension is multiplied by, and its partner; [dims] each."""
    angles = position * rotation.stride + tl.where(dims < HALF, dims, dims - HALF)
    rotated = dims < 2 * HALF
    cos = tl.load(rotation.cos_ptr + angles, mask=rotated, other=1.0)
    sin = tl.load(rotation.sin_ptr + angles, mask=rotated, other=0.0)
    return cos, tl.where(dims < HALF, -sin, sin)


@triton.jit
def head_weights(norms: HeadNorms, shrink, is_query, is_key, dims, HEAD_DIM: tl.constexpr):
    """What each head's dimensions are multiplied by, [heads, dims]: 1 where there is no norm."""
    inside = dims < HEAD_DIM
    weights = tl.zeros([shrink.shape[0], dims.shape[0]], tl.float32) + 1.0
    if norms.query_weight_ptr is not None:
        weight = tl.load(norms.query_weight_ptr + dims, mask=inside, other=0.0).to(tl.float32)
        weights = tl.where(is_query[:, None], shrink * weight[None, :], weights)
    if norms.key_weight_ptr is not None:
        weight = tl.load(norms.key_weight_ptr + dims, mask=inside, other=0.0).to(tl.float32)
        weights = tl.where(is_key[:, None], shrink * weight[None, :], weights)
    return weights


@triton.jit
def activate_and_multiply(
    output_ptr,
    gate_up_ptr,
    inter,
    stride,
    ACTIVATION: tl.constexpr,
    PLAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` results of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inter
    at = gate_up_ptr + token * stride + columns
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        # tanh through exp, whose overflow to infinity gives the right limit of 1.
        active = x * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    elif ACTIVATION == "relu2":
        active = tl.where(x > 0, x * x, 0.0)
    elif ACTIVATION == "clamped_swiglu":
        x = tl.minimum(x, 7.0, tl.PropagateNan.ALL)
        active = x / (1.0 + tl.exp(-1.702 * x))
    else:
        active = x / (1.0 + tl.exp(-x))
    if not PLAIN:
        second = tl.load(at + inter, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION == "clamped_swiglu":
            second = tl.clamp(second, -7.0, 7.0, tl.PropagateNan.ALL) + 1.0
        active *= second
    to = output_ptr + token * inter + columns
    tl.store(to, active.to(output_ptr.dtype.element_ty), mask=inside)
