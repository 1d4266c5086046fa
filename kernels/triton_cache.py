"""Triton: store the keys and values of new tokens in their slots of the KV memory."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS_PER_PROGRAM = 2048


def write_kv(key: Tensor, value: Tensor, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    num_tokens, num_kv_heads, head_dim = key.shape
    dim_pad = triton.next_power_of_2(head_dim)
    heads = min(triton.next_power_of_2(num_kv_heads), max(1, _ELEMENTS_PER_PROGRAM // dim_pad))
    write_slots[num_tokens, triton.cdiv(num_kv_heads, heads)](
        key,
        value,
        kv,
        slots,
        *key.stride()[:2],
        *value.stride()[:2],
        *kv.stride()[:4],
        num_kv_heads,
        BLOCK_SIZE=kv.shape[3],
        HEAD_DIM=head_dim,
        DIM_PAD=dim_pad,
        HEADS=heads,
    )


@triton.jit
def write_slots(
    key_ptr,
    value_ptr,
    kv_ptr,
    slots_ptr,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    kv_block_stride,
    kv_value_stride,
    kv_head_stride,
    kv_token_stride,
    num_kv_heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program stores `HEADS` heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    dims = tl.arange(0, DIM_PAD)[None, :]
    inside = (heads < num_kv_heads) & (dims < HEAD_DIM)
    slot = tl.load(slots_ptr + token)
    to = kv_ptr + (slot // BLOCK_SIZE) * kv_block_stride + (slot % BLOCK_SIZE) * kv_token_stride
    to += heads * kv_head_stride + dims
    keys = key_ptr + token * key_token_stride + heads * key_head_stride + dims
    values = value_ptr + token * value_token_stride + heads * value_head_stride + dims
    tl.store(to, tl.load(keys, mask=inside), mask=inside)
    tl.store(to + kv_value_stride, tl.load(values, mask=inside), mask=inside)
