"""Triton: products of rows that are sorted by expert, each with its expert's weights."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.experts.rows import SortedRows
from kernels.triton.walk import dot_type

ADD_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program multiplies."""

    rows: int  # of a block
    columns: int
    depth: int  # at a time
    num_warps: int
    num_stages: int

    def options(self) -> dict[str, int]:
        """What the launch passes to the compiler."""
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "DEPTH": self.depth,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


_FEW = Tile(16, 64, 128, num_warps=4, num_stages=4)
"""Each expert's weights are read for a few rows: narrow, so that one token's experts are enough
programs for a device."""
_SOME = Tile(64, 128, 64, num_warps=4, num_stages=4)
_MANY = Tile(128, 128, 64, num_warps=8, num_stages=3)
_EXACT_FEW = Tile(16, 64, 32, num_warps=4, num_stages=1)
_EXACT = Tile(64, 64, 32, num_warps=4, num_stages=1)


def tiles(dtype: torch.dtype) -> tuple[Tile, ...]:
    """Those of rows of such a type, ascending."""
    return (_EXACT_FEW, _EXACT) if dtype == torch.float32 else (_FEW, _SOME, _MANY)


def tile_for(mean: float, dtype: torch.dtype, *, batch_invariant: bool) -> Tile:
    """The tile where an expert has `mean` rows: half of it may stay empty, so that most have one.

    Tensor cores add in an order that depends on the tile, so that there is one for all where
    results must not depend on the number of rows. What is read takes longer than empty rows do.
    """
    every = tiles(dtype)
    if batch_invariant:
        return every[1]
    return next((tile for tile in every if 2 * mean <= tile.rows), every[-1])


def multiply(
    x: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    rows: SortedRows,
    tile: Tile,
    *,
    per_token: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Each row times the transpose of its expert's `weights` [experts, columns, depth], plus bias.

    With `per_token`, experts of a token, `x` is [tokens, depth] and the result in sorted order;
    without it is the other way round: sorted rows become those of tokens, [num_rows, columns].
    The result is of type `dtype`, or that of `x`.
    """
    _, columns, depth = weights.shape
    output = x.new_empty((len(rows.order), columns), dtype=dtype)
    with torch.cuda.device(x.get_device()):  # Triton launches on the current device
        # Programs that are neighbours read the same rows, and soon the same weights again.
        multiply_by_expert[triton.cdiv(columns, tile.columns), rows.blocks.shape[1]](
            output,
            x,
            weights,
            biases,
            rows.order,
            rows.blocks,
            columns,
            depth,
            per_token or 1,
            x.stride(0),
            GATHERS=per_token is not None,
            DOT_TYPE=dot_type(x.dtype),
            **tile.options(),
        )
    return output


def add_shares(parts: Tensor, shares: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of each token's `parts`, float32 [tokens * experts of a token, columns], times its
    `shares`, float32 [tokens, experts of a token]: [tokens, columns], rounded once.
    """
    num_tokens, per_token = shares.shape
    columns = parts.shape[1]
    output = parts.new_empty((num_tokens, columns), dtype=dtype)
    with torch.cuda.device(parts.get_device()):  # Triton launches on the current device
        add_weighted[num_tokens, triton.cdiv(columns, ADD_BLOCK)](
            output, parts, shares, columns, per_token, BLOCK=ADD_BLOCK
        )
    return output


def add_shared(update: Tensor, shared: Tensor, gates: Tensor | None) -> None:
    """See `kernels.experts.add_shared`."""
    num_tokens, columns = update.shape
    if not num_tokens:
        return
    with torch.cuda.device(update.get_device()):  # Triton launches on the current device
        add_gated[num_tokens, triton.cdiv(columns, ADD_BLOCK)](
            update, shared, gates, columns, BLOCK=ADD_BLOCK
        )


@triton.jit
def multiply_by_expert(
    output_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,  # or None
    order_ptr,
    blocks_ptr,  # [3, blocks]
    columns,
    depth,
    per_token,
    x_stride,
    GATHERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """One program: one tile of one block of rows."""
    block = blocks_ptr + tl.program_id(1)
    expert = tl.load(block).to(tl.int64)
    first_row = tl.load(block + tl.num_programs(1))
    end_row = tl.load(block + 2 * tl.num_programs(1))
    if first_row >= end_row:
        return
    row = first_row + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    # Rows and columns behind the last are those of the last, and are not stored.
    source = tl.minimum(row, end_row - 1)
    number = tl.load(order_ptr + source)
    if GATHERS:
        source = number // per_token
        to = row
    else:
        to = number
    x_at = x_ptr + source.to(tl.int64)[:, None] * x_stride + inner[None, :]
    weight_row = expert * columns + tl.minimum(column, columns - 1)
    weight_at = weight_ptr + weight_row[:, None] * depth + inner[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        inside = (start + inner < depth)[None, :]
        x = tl.load(x_at + start, mask=inside, other=0.0).to(DOT_TYPE)
        weight = tl.load(weight_at + start, mask=inside, other=0.0).to(DOT_TYPE)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    inside = column < columns
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + expert * columns + column, mask=inside, other=0.0)
        total += bias.to(tl.float32)[None, :]
    to_at = output_ptr + to.to(tl.int64)[:, None] * columns + column[None, :]
    stored = (row < end_row)[:, None] & inside[None, :]
    tl.store(to_at, total.to(output_ptr.dtype.element_ty), mask=stored)


@triton.jit
def add_weighted(output_ptr, parts_ptr, shares_ptr, columns, per_token, BLOCK: tl.constexpr):
    """One program: `BLOCK` results of one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(token * per_token, (token + 1) * per_token):
        part = tl.load(parts_ptr + row * columns + column, mask=inside, other=0.0)
        total += tl.load(shares_ptr + row) * part
    to = output_ptr + token * columns + column
    tl.store(to, total.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_gated(update_ptr, shared_ptr, gates_ptr, columns, BLOCK: tl.constexpr):
    """One program: `BLOCK` results of one token; rows lie one behind the other."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = column < columns, token * columns + column
    shared = tl.load(shared_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if gates_ptr is not None:
        shared *= 1.0 / (1.0 + tl.exp(-tl.load(gates_ptr + token)))
    total = tl.load(update_ptr + at, mask=inside, other=0.0).to(tl.float32) + shared
    tl.store(update_ptr + at, total.to(update_ptr.dtype.element_ty), mask=inside)
