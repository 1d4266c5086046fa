"""Triton: attention of a tile of query rows over the paged keys of one sequence.

The walk that decode, shared prefixes and prefill have in common. Keys are visited in tiles, found
through the block table, with an online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et
al. 2022), so that no key is copied and no row of scores is ever whole. Scores are kept in powers of
two, with the scale folded into the one multiplication that the exponential needs anyway.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from kernels.triton.arguments import KvMemory, Rows

LOG2_E = tl.constexpr(1.4426950408889634)
# Finite, so that a row that has seen no key yet subtracts to 0 and not to NaN.
LOWEST = tl.constexpr(-1e30)
# Eight-bit floats are read as fp16 with the same mantissa, whose exponent is biased by 8 more.
FP8_FACTOR = tl.constexpr(256.0)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a kernel is cut for a head dimension and a dtype. One config a shape: no autotuning."""

    rows: int  # query rows of a program
    keys: int  # keys visited at a time
    num_warps: int
    num_stages: int
    registers: int | None = None  # of a thread at most; `None`: as the assembler likes

    def options(self) -> dict[str, int | None]:
        """What the launch passes to the compiler."""
        return {
            "TILE": self.keys,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "maxnreg": self.registers,
        }


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type matrix products take: that of storage, which tensor cores multiply as it is.

    Triton's interpreter multiplies the bit patterns of bfloat16, so there it is widened.
    """
    if dtype == torch.float16:
        return tl.float16
    if dtype == torch.bfloat16 and not knobs.runtime.interpret:
        return tl.bfloat16
    return tl.float32


def head_options(query: Tensor, kv: Tensor) -> dict[str, Any]:
    """What every walk's launch passes of heads and blocks."""
    return {
        "GROUP": query.shape[1] // kv.shape[2],
        "BLOCK_SIZE": kv.shape[3],
        "HEAD_DIM": query.shape[2],
        "DOT_TYPE": dot_type(query.dtype),
    }


@triton.jit
def walk_keys(
    query,  # [rows, dims] of DOT_TYPE
    seen,  # what earlier walks returned, or `no_keys`
    positions,  # [rows] int32, the last key each row may see
    kv: KvMemory,
    kv_head,
    table_ptr,
    begin,
    end,  # keys begin .. end of the sequence are visited
    scale,
    MASKED: tl.constexpr,  # False: whole tiles that every row sees in full
    WINDOW: tl.constexpr,  # 0: none
    CHUNK: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0.0: none
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Returns `seen` with the keys of this walk added.

    It is: the output [rows, dims], not yet divided by its weights; the highest score of each row,
    base 2; the sum of its weights.
    """
    output, top, total = seen
    dims = tl.arange(0, query.shape[1])
    kv_ptr = kv.ptr + kv_head * kv.head_stride
    LOCAL: tl.constexpr = MASKED and (WINDOW > 0 or CHUNK > 0)
    if LOCAL:
        firsts = first_seen(positions, WINDOW, CHUNK)
        oldest = tl.min(firsts)
    for start in range(begin, end, TILE):
        keys = start + tl.arange(0, TILE)
        if MASKED:
            # Slots past `end` may hold anything, NaN too, which a weight of 0 would not silence. So
            # may blocks in front of a window, which may be other sequences' by now.
            stored = keys < end
            if LOCAL:
                stored &= keys >= oldest
            block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        else:
            stored = tl.full([TILE], True, tl.int1)
            block = tl.load(table_ptr + keys // BLOCK_SIZE).to(tl.int64)
        rows = kv_ptr + block * kv.block_stride + (keys % BLOCK_SIZE) * kv.token_stride
        key, key_scale = load_rows(rows, dims, stored, MASKED, HEAD_DIM, DOT_TYPE)
        value, value_scale = load_rows(
            rows + kv.value_stride, dims, stored, MASKED, HEAD_DIM, DOT_TYPE
        )

        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if kv.ptr.dtype.element_ty.primitive_bitwidth == 8:
            scores = scores * key_scale[None, :]
        factor = scale * LOG2_E
        if SOFTCAP > 0.0:
            # tanh through exp, whose overflow to infinity gives the right limit of 1.
            scores = 1.0 - 2.0 / (tl.exp2(scores * (2.0 / SOFTCAP * factor)) + 1.0)
            factor = SOFTCAP * LOG2_E
        if MASKED:
            visible = (keys[None, :] <= positions[:, None]) & stored[None, :]
            if LOCAL:
                visible &= keys[None, :] >= firsts[:, None]
            scores = tl.where(visible, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1) * factor)
        shrink = tl.exp2(top - new_top)
        weights = tl.exp2(scores * factor - new_top[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        output = output * shrink[:, None]
        if kv.ptr.dtype.element_ty.primitive_bitwidth == 8:
            weights = weights * value_scale[None, :]
        output = tl.dot(weights.to(DOT_TYPE), value, output, input_precision="ieee")
        top = new_top
    return output, top, total


@triton.jit
def first_seen(positions, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first keys that queries at these positions see."""
    first = positions * 0
    if WINDOW > 0:
        first = tl.maximum(positions - (WINDOW - 1), 0)
    if CHUNK > 0:
        first = tl.maximum(first, positions // CHUNK * CHUNK)
    return first


@triton.jit
def no_keys(ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Output, highest score and sum of weights of rows that have seen no key yet."""
    output = tl.zeros([ROWS, triton.next_power_of_2(HEAD_DIM)], tl.float32)
    return output, tl.full([ROWS], LOWEST, tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def load_queries(
    query: Rows,
    token,  # of each row, or of all
    head,  # [rows]
    real,  # [rows]
    HEAD_DIM: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """The rows [rows, dims] in DOT_TYPE; zeros where they are not real."""
    dims = tl.arange(0, triton.next_power_of_2(HEAD_DIM))
    at = query.ptr + token * query.token_stride + head * query.head_stride
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(at[:, None] + dims[None, :], mask=inside, other=0.0).to(DOT_TYPE)


@triton.jit
def store_result(
    to: Rows,
    token,  # of each row, or of all
    head,  # [rows]
    seen,  # what walks over all keys returned
    sinks_ptr,  # None: none
    real,  # [rows]
    HEAD_DIM: tl.constexpr,
):
    """Store rows divided by their weights. A sink joins them here: once, whoever merges."""
    output, top, total = seen
    if sinks_ptr is not None:
        sinks = tl.load(sinks_ptr + head, mask=real, other=0.0) * LOG2_E
        new_top = tl.maximum(top, sinks)
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.exp2(sinks - new_top)
        output = output * shrink[:, None]
    values = output / tl.where(real, total, 1.0)[:, None]
    dims = tl.arange(0, values.shape[1])
    at = to.ptr + token * to.token_stride + head * to.head_stride
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(at[:, None] + dims[None, :], values.to(to.ptr.dtype.element_ty), mask=inside)


@triton.jit
def load_rows(
    rows,  # [keys] pointers to the rows of one head
    dims,
    stored,  # [keys] whether a row holds a key
    MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """The rows [keys, dims] in DOT_TYPE, and what each is to be multiplied by, [keys] or 1."""
    at = rows[:, None] + dims[None, :]
    # Without a mask where none is needed: a load then is one instruction of 16 bytes a thread.
    if dims.shape[0] > HEAD_DIM:
        data = tl.load(at, mask=stored[:, None] & (dims < HEAD_DIM)[None, :], other=0)
    elif MASKED:
        data = tl.load(at, mask=stored[:, None], other=0)
    else:
        data = tl.load(at)
    scale = 1.0
    if rows.dtype.element_ty.primitive_bitwidth == 8:
        scales = (rows + HEAD_DIM).to(tl.pointer_type(tl.float32))
        scale = tl.load(scales, mask=stored, other=0.0)
    if rows.dtype.element_ty == tl.uint8:
        bits = data.to(tl.uint16)
        bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        data = bits.to(tl.float16, bitcast=True)
        scale = scale * FP8_FACTOR
    return data.to(DOT_TYPE), scale
