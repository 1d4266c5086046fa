"""Triton: attention of a tile of query rows over the paged keys of one sequence.

The walk that decode and prefill share. Keys are visited in tiles, found through the block table,
with an online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022), so that no
key is copied and no row of scores is ever whole.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton import knobs

LOG2_E = tl.constexpr(1.4426950408889634)
# Finite, so that a row that has seen no key yet subtracts to 0 and not to NaN.
LOWEST = tl.constexpr(-1e30)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel is cut for a head dimension and a dtype. One config a shape: no autotuning."""

    rows: int  # query rows of a program
    keys: int  # keys visited at a time
    num_warps: int
    num_stages: int

    def options(self) -> dict[str, int]:
        """What the launch passes to the compiler."""
        return {"TILE": self.keys, "num_warps": self.num_warps, "num_stages": self.num_stages}


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type matrix products take: that of storage, which tensor cores multiply as it is.

    Triton's interpreter multiplies the bit patterns of bfloat16, so there it is widened.
    """
    if dtype == torch.float16:
        return tl.float16
    if dtype == torch.bfloat16 and not knobs.runtime.interpret:
        return tl.bfloat16
    return tl.float32


@triton.jit
def walk_keys(
    query,  # [rows, DIM_PAD] of DOT_TYPE
    positions,  # [rows] int32, where each row's query sits in its sequence
    kv_ptr,  # the KV head's first key in block 0
    table_ptr,
    begin,
    end,  # keys begin .. end of the sequence are visited
    scale,
    kv_block_stride,
    kv_value_stride,
    kv_token_stride,
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0.0: none
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Returns, for each row, the unnormalised output, the highest score (base 2) and the sum."""
    dims = tl.arange(0, query.shape[1])
    top = tl.full([query.shape[0]], LOWEST, tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    output = tl.zeros([query.shape[0], query.shape[1]], tl.float32)
    for start in range(begin, end, TILE):
        keys = start + tl.arange(0, TILE)
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < end, other=0).to(tl.int64)
        at = kv_ptr + block * kv_block_stride + (keys % BLOCK_SIZE) * kv_token_stride
        at = at[:, None] + dims[None, :]
        # Slots past `end` may hold anything, NaN too, which a weight of 0 would not silence.
        stored = (keys < end)[:, None] & (dims < HEAD_DIM)[None, :]
        key = tl.load(at, mask=stored, other=0.0).to(DOT_TYPE)
        value = tl.load(at + kv_value_stride, mask=stored, other=0.0).to(DOT_TYPE)

        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SOFTCAP > 0.0:
            # tanh through exp, whose overflow to infinity gives the right limit of 1.
            scores = SOFTCAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / SOFTCAP)) + 1.0))
        visible = (keys[None, :] <= positions[:, None]) & (keys < end)[None, :]
        if WINDOW > 0:
            visible &= positions[:, None] - keys[None, :] < WINDOW
        scores = tl.where(visible, scores * LOG2_E, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp2(top - new_top)
        weights = tl.exp2(scores - new_top[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        output = output * shrink[:, None]
        output += tl.dot(weights.to(DOT_TYPE), value, input_precision="ieee")
        top = new_top
    return output, top, total
