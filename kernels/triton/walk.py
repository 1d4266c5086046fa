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


WIDE = 256
"""Dimensions of a value beyond which all kernels are cut alike, by `wide_tiling`."""


def wide_tiling(rows: int, group: int, dtype: torch.dtype, *, quantized: bool) -> Tiling:
    """The cut for heads that are wider than `WIDE`: so many rows, if there are registers for them.

    Codes are widened in registers, so that fewer of them are taken at a time.
    """
    exact = dtype == torch.float32
    rows = min(rows, max(16 if exact else 32, triton.next_power_of_2(group)))
    keys = 16 if exact or quantized else 32
    return Tiling(rows, keys, num_warps=8, num_stages=1 if exact else 3)


def latent_heads(num_heads: int, dtype: torch.dtype, *, quantized: bool) -> int:
    """How many of the query heads, which all share one latent, a tile takes: a part of them.

    Their outputs, of 512 dimensions, have to leave registers for the rest.
    """
    most = 16 if dtype == torch.float32 or quantized else 32
    return next(count for count in range(most, 0, -1) if num_heads % count == 0)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type matrix products take: that of storage, which tensor cores multiply as it is.

    Triton's interpreter multiplies the bit patterns of bfloat16, so there it is widened.
    """
    if dtype == torch.float16:
        return tl.float16
    if dtype == torch.bfloat16 and not knobs.runtime.interpret:
        return tl.bfloat16
    return tl.float32


def head_options(query: Tensor, kv: Tensor, value_dim: int) -> dict[str, Any]:
    """What every walk's launch passes of heads and blocks.

    Keys of latents, whose values have fewer dimensions than they, are walked in two tiles: what is
    a value at once, and the rest.
    """
    return {
        "GROUP": query.shape[1] // kv.shape[2],
        "BLOCK_SIZE": kv.shape[3],
        "HEAD_DIM": value_dim,
        "KEY_REST": query.shape[2] - value_dim,
        "DOT_TYPE": dot_type(query.dtype),
    }


@triton.jit
def walk_keys(
    query,  # as `load_queries` returns it
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
    HEAD_DIM: tl.constexpr,  # of a value
    KEY_REST: tl.constexpr,  # what a key has behind those of its value; 0: values are stored apart
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Returns `seen` with the keys of this walk added.

    It is: the output [rows, dims], not yet divided by its weights; the highest score of each row,
    base 2; the sum of its weights.
    """
    output, top, total = seen
    query_tile, query_rest = query
    ROW: tl.constexpr = HEAD_DIM + KEY_REST  # dimensions of a stored row
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
        key, key_scale = load_rows(rows, stored, MASKED, 0, HEAD_DIM, ROW, DOT_TYPE)
        if KEY_REST > 0:
            value, value_scale = key, key_scale
        else:
            value, value_scale = load_rows(
                rows + kv.value_stride, stored, MASKED, 0, HEAD_DIM, ROW, DOT_TYPE
            )

        scores = tl.dot(query_tile, tl.trans(key), input_precision="ieee")
        if KEY_REST > 0:
            rest, _ = load_rows(rows, stored, MASKED, HEAD_DIM, KEY_REST, ROW, DOT_TYPE)
            scores = tl.dot(query_rest, tl.trans(rest), scores, input_precision="ieee")
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
    KEY_REST: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """The rows [rows, dims] in DOT_TYPE, and what they have behind HEAD_DIM, or the same again.

    Zeros where they are not real.
    """
    at = query.ptr + token * query.token_stride + head * query.head_stride
    tile = load_part(at, real, HEAD_DIM, DOT_TYPE)
    rest = tile
    if KEY_REST > 0:
        rest = load_part(at + HEAD_DIM, real, KEY_REST, DOT_TYPE)
    return tile, rest


@triton.jit
def load_part(at, real, DIMS: tl.constexpr, DOT_TYPE: tl.constexpr):
    """DIMS of each row from `at` [rows] on."""
    dims = tl.arange(0, triton.next_power_of_2(DIMS))
    inside = real[:, None] & (dims < DIMS)[None, :]
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
    stored,  # [keys] whether a row holds a key
    MASKED: tl.constexpr,
    FIRST: tl.constexpr,
    DIMS: tl.constexpr,
    ROW: tl.constexpr,  # dimensions of a whole row
    DOT_TYPE: tl.constexpr,
):
    """DIMS of each row from FIRST on, in DOT_TYPE, and what to multiply them by: [keys] or 1."""
    dims = tl.arange(0, triton.next_power_of_2(DIMS))
    at = (rows + FIRST)[:, None] + dims[None, :]
    # Without a mask where none is needed: a load then is one instruction of 16 bytes a thread.
    if dims.shape[0] > DIMS:
        data = tl.load(at, mask=stored[:, None] & (dims < DIMS)[None, :], other=0)
    elif MASKED:
        data = tl.load(at, mask=stored[:, None], other=0)
    else:
        data = tl.load(at)
    scale = 1.0
    if rows.dtype.element_ty.primitive_bitwidth == 8:
        scales = (rows + ROW).to(tl.pointer_type(tl.float32))
        scale = tl.load(scales, mask=stored, other=0.0)
    if rows.dtype.element_ty == tl.uint8:
        bits = data.to(tl.uint16)
        bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        data = bits.to(tl.float16, bitcast=True)
        scale = scale * FP8_FACTOR
    return data.to(DOT_TYPE), scale
