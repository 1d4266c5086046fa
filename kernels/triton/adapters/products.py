"""Triton: blocks of rows through the ranks of their adapters, and back."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.adapters.tables import FIELDS, RANKS, ROWS, Blocks
from kernels.triton.walk import dot_type

PLACED: Final = ["order_ptr", "blocks_ptr"]
"""Parts of one tensor: where they begin depends on numbers of rows, and is not compiled for."""

COLUMNS: Final = 64
"""Outputs of a program: few, so that one row's are enough programs for a device."""

_PIECE: Final = 512
"""Inputs that a program sums up, at least."""

_PIECES: Final = 8
"""Programs that share the inputs of a row, at most."""


def take(x: Tensor, rows: Blocks, product: int, tiles: int) -> Tensor:
    """What ranks take of rows: float32 [pieces, num_rows, tiles * RANKS], not summed up yet."""
    depth = x.shape[1]
    piece = piece_of(depth)
    pieces, blocks = triton.cdiv(depth, piece), rows.blocks.shape[1]
    shape = pieces, len(rows.order), tiles * RANKS
    taken = x.new_empty(shape, dtype=torch.float32)
    # Programs that are neighbours read the same rows.
    take_ranks[tiles, blocks, pieces](
        taken,
        x,
        rows.order,
        rows.blocks,
        product,
        depth,
        piece,
        len(rows.order),
        x.stride(0),
        VECTOR=rows.vector,
        OF_EXPERTS=rows.are_of_experts,
        DOT_TYPE=dot_type(x.dtype),
        **take_options(x.dtype),
    )
    return taken


def give(output: Tensor, taken: Tensor, rows: Blocks, product: int, like: Tensor) -> None:
    """Add to the `output` of rows what ranks, of the type of `like`, give of what they have
    `taken`.
    """
    pieces, num_rows, width = taken.shape
    columns = output.shape[1]
    give_columns[triton.cdiv(columns, COLUMNS), rows.blocks.shape[1]](
        output,
        taken,
        like,
        rows.order,
        rows.blocks,
        product,
        columns,
        pieces,
        num_rows,
        width,
        output.stride(0),
        VECTOR=rows.vector,
        OF_EXPERTS=rows.are_of_experts,
        **give_options(like.dtype),
    )


def piece_of(depth: int) -> int:
    """Of a summation of that length, how long each of its pieces is: of nothing else."""
    return -(-depth // (_PIECES * _PIECE)) * _PIECE


def take_options(dtype: torch.dtype) -> dict[str, Any]:
    """What the launch passes to the compiler."""
    cut: dict[str, Any] = {"ROWS": ROWS, "RANKS": RANKS, "FIELDS": FIELDS}
    if dtype == torch.float32:
        return cut | {"DEPTH": 32, "num_warps": 4, "num_stages": 1}
    return cut | {"DEPTH": 128, "num_warps": 4, "num_stages": 4}


def give_options(dtype: torch.dtype) -> dict[str, Any]:
    """What the launch passes to the compiler. What was taken is float32 whatever the weights are:
    tensor cores multiply it in three parts.
    """
    exact = "ieee" if dtype == torch.float32 else "tf32x3"
    cut = {"ROWS": ROWS, "RANKS": RANKS, "COLUMNS": COLUMNS, "FIELDS": FIELDS}
    return cut | {"PRECISION": exact, "num_warps": 4, "num_stages": 1}


@triton.jit
def tiles_of(block, product, OF_EXPERTS: tl.constexpr):
    """Where the first tile of a block's adapter, or of its expert, is, and how many there are."""
    table = tl.load(block).to(block.dtype)
    entry = table + 2 * product
    count = tl.load(entry + 1)
    if OF_EXPERTS:
        expert = tl.load(block + 3 * tl.num_programs(1))
        is_changed = expert < count
        entry = table + tl.where(is_changed, tl.load(entry) + 2 * expert, 2 * product)
        count = tl.where(is_changed, tl.load(entry + 1), 0)
    return table + tl.load(entry), count


@triton.jit(
    do_not_specialize=["product", "piece", "num_rows"], do_not_specialize_on_alignment=PLACED
)
def take_ranks(
    taken_ptr,
    x_ptr,
    order_ptr,
    blocks_ptr,  # [3 or 4, blocks]
    product,
    depth,
    piece,
    num_rows,
    x_stride,
    VECTOR: tl.constexpr,
    OF_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    DEPTH: tl.constexpr,
    FIELDS: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """One program: one block of rows, one tile of ranks, one piece of the inputs."""
    BYTES: tl.constexpr = VECTOR * x_ptr.dtype.element_ty.primitive_bitwidth // 8
    block = blocks_ptr + tl.program_id(1)
    first_row = tl.load(block + tl.num_programs(1))
    end_row = tl.load(block + 2 * tl.num_programs(1))
    tile, count = tiles_of(block, product, OF_EXPERTS)
    number = tl.program_id(0)
    if (number >= count) | (first_row >= end_row):
        return
    tile += number * FIELDS
    down_ptr = tl.load(tile).to(x_ptr.dtype)
    down_ptr = tl.multiple_of(down_ptr, BYTES)
    last_rank = (tl.load(tile + 2) - 1).to(tl.int32)
    row = first_row + tl.arange(0, ROWS)
    rank = tl.arange(0, RANKS)
    inner = tl.arange(0, DEPTH)
    # Rows and ranks behind the last are those of the last, and are not stored, or not read.
    source = tl.load(order_ptr + tl.minimum(row, end_row - 1))
    x_at = x_ptr + source[:, None] * x_stride + inner[None, :]
    down_at = down_ptr + tl.minimum(rank, last_rank)[:, None] * depth + inner[None, :]
    total = tl.zeros([ROWS, RANKS], tl.float32)
    begin = tl.program_id(2) * piece
    for start in range(begin, tl.minimum(begin + piece, depth), DEPTH):
        inside = (start + inner < depth)[None, :]
        x = tl.load(x_at + start, mask=inside, other=0.0).to(DOT_TYPE)
        down = tl.load(down_at + start, mask=inside, other=0.0).to(DOT_TYPE)
        total = tl.dot(x, tl.trans(down), total, input_precision="ieee")
    to = tl.program_id(2).to(tl.int64) * num_rows + row
    width = tl.num_programs(0) * RANKS
    to_at = taken_ptr + to[:, None] * width + number * RANKS + rank[None, :]
    tl.store(to_at, total, mask=(row < end_row)[:, None])


@triton.jit(
    do_not_specialize=["product", "columns", "pieces", "num_rows"],
    do_not_specialize_on_alignment=PLACED,
)
def give_columns(
    output_ptr,
    taken_ptr,  # [pieces, num_rows, width]
    like_ptr,  # of the type of what ranks have
    order_ptr,
    blocks_ptr,  # [3 or 4, blocks]
    product,
    columns,
    pieces,
    num_rows,
    width,
    output_stride,
    VECTOR: tl.constexpr,
    OF_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FIELDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one block of rows, some outputs, all ranks that give to them."""
    BYTES: tl.constexpr = VECTOR * like_ptr.dtype.element_ty.primitive_bitwidth // 8
    block = blocks_ptr + tl.program_id(1)
    first_row = tl.load(block + tl.num_programs(1))
    end_row = tl.load(block + 2 * tl.num_programs(1))
    if first_row >= end_row:
        return
    tile, count = tiles_of(block, product, OF_EXPERTS)
    row = first_row + tl.arange(0, ROWS)
    rank = tl.arange(0, RANKS)
    begin = tl.program_id(0) * COLUMNS
    column = begin + tl.arange(0, COLUMNS)
    source = tl.minimum(row, end_row - 1)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    is_changed = False
    for number in range(count):
        outputs = tl.multiple_of(tl.load(tile + 3).to(tl.int32), VECTOR)
        at = tl.multiple_of(tl.load(tile + 4).to(tl.int32), VECTOR)
        if (at < begin + COLUMNS) & (begin < at + outputs):
            is_changed = True
            there = rank < tl.load(tile + 2)
            taken = tl.zeros([ROWS, RANKS], tl.float32)
            for piece in range(pieces):
                part_at = taken_ptr + (piece * num_rows + source)[:, None] * width
                part_at += number * RANKS + rank[None, :]
                taken += tl.load(part_at, mask=there[None, :], other=0.0)
            taken *= tl.load(tile + 5).to(tl.int32).to(tl.float32, bitcast=True)
            up_ptr = tl.load(tile + 1).to(like_ptr.dtype)
            up_ptr = tl.multiple_of(up_ptr, BYTES)
            own = column - at
            up_at = up_ptr + rank[:, None] * outputs + own[None, :]
            inside = there[:, None] & (own >= 0)[None, :] & (own < outputs)[None, :]
            up = tl.load(up_at, mask=inside, other=0.0).to(tl.float32)
            total = tl.dot(taken, up, total, input_precision=PRECISION)
        tile += FIELDS
    if is_changed:
        to_at = tl.load(order_ptr + source)[:, None] * output_stride + column[None, :]
        inside = (row < end_row)[:, None] & (column < columns)[None, :]
        total += tl.load(output_ptr + to_at, mask=inside, other=0.0).to(tl.float32)
        tl.store(output_ptr + to_at, total.to(output_ptr.dtype.element_ty), mask=inside)
