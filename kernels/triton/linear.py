"""Triton: a matrix product whose rows do not depend on how many others there are.

Libraries pick another kernel, and with it another order of summation, for another number of rows.
Here tiles are fixed, and the summation is cut into pieces that depend on the weight's shape alone:
each is summed from zero, and the pieces are added in order. Few rows have their pieces summed side
by side, so that they fill the device, and many one after the other; the order is the same.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from kernels.reference.linear import Product
from kernels.triton.walk import dot_type
from kernels.triton.work import num_processors
from kernels.types import Linear, Quantization

ROWS, COLUMNS, DEPTH = 64, 128, 64
_FEWEST_TILES = 256
"""Tiles of a product with few rows that fill any of today's devices."""
ADD_BLOCK = 1024


def options(dtype: torch.dtype) -> dict[str, int]:
    """What the launch passes to the compiler."""
    if dtype == torch.float32:
        return {"DEPTH": 32, "num_warps": 8, "num_stages": 1}
    return {"DEPTH": DEPTH, "num_warps": 4, "num_stages": 4}


def pack(
    weight: Tensor,
    bias: Tensor | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> Linear:
    """See `kernels.linear.pack`. Libraries multiply faster, where rows may depend on each other."""
    del quantization  # which no GPU has
    return Product(weight, bias, linear if batch_invariant else functional.linear)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x` [tokens, in] times the transpose of `weight` [out, in], plus `bias` [out], in x's dtype.

    A row's result has the same bits whatever other rows there are.
    """
    rows, depth = x.shape
    columns = len(weight)
    output = x.new_empty((rows, columns))
    grid = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    piece, num_pieces = pieces(columns, depth)
    apart = num_pieces > 1 and grid[0] * grid[1] < 2 * num_processors(x.device)
    sums = output if not apart else x.new_empty((num_pieces, rows, columns), dtype=torch.float32)
    with torch.cuda.device(x.get_device()):  # Triton launches on the current device
        multiply[*grid, num_pieces if apart else 1](
            sums,
            x,
            weight,
            None if apart else bias,
            rows,
            columns,
            depth,
            piece,
            1 if apart else num_pieces,
            x.stride(0),
            weight.stride(0),
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            DOT_TYPE=dot_type(x.dtype),
            **options(x.dtype),
        )
        if apart:
            add_pieces[rows, triton.cdiv(columns, ADD_BLOCK)](
                output, sums, bias, rows, columns, num_pieces, BLOCK=ADD_BLOCK
            )
    return output


def pieces(columns: int, depth: int) -> tuple[int, int]:
    """The length of a piece of the summation and their number, for a weight [columns, depth]."""
    wanted = triton.cdiv(_FEWEST_TILES, triton.cdiv(columns, COLUMNS))
    piece = triton.cdiv(triton.cdiv(depth, wanted), 4 * DEPTH) * 4 * DEPTH
    return piece, triton.cdiv(depth, piece)


@triton.jit(do_not_specialize=["rows", "num_pieces"])
def multiply(
    output_ptr,  # [pieces apart, rows, columns]
    x_ptr,
    weight_ptr,
    bias_ptr,  # or None
    rows,
    columns,
    depth,
    piece,
    num_pieces,  # of one program
    x_stride,
    weight_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """One program: one tile, of one piece or of all."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    # Rows and columns behind the last are those of the last, and are not stored.
    x_at = x_ptr + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * x_stride + inner[None, :]
    weight_at = tl.minimum(column, columns - 1).to(tl.int64)[:, None] * weight_stride
    weight_at = weight_ptr + weight_at + inner[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    first_piece = tl.program_id(2)
    for index in range(first_piece, first_piece + num_pieces):
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(index * piece, tl.minimum((index + 1) * piece, depth), DEPTH):
            inside = (start + inner < depth)[None, :]
            x = tl.load(x_at + start, mask=inside, other=0.0).to(DOT_TYPE)
            weight = tl.load(weight_at + start, mask=inside, other=0.0).to(DOT_TYPE)
            sums = tl.dot(x, tl.trans(weight), sums, input_precision="ieee")
        total += sums
    if bias_ptr is not None:
        total += tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    to = output_ptr + (tl.program_id(2).to(tl.int64) * rows + row)[:, None] * columns
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(to + column[None, :], total.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "num_pieces"])
def add_pieces(output_ptr, sums_ptr, bias_ptr, rows, columns, num_pieces, BLOCK: tl.constexpr):
    """One program: `BLOCK` results of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros([BLOCK], tl.float32)
    for index in range(num_pieces):
        total += tl.load(sums_ptr + (index * rows + row) * columns + column, mask=inside, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        output_ptr + row * columns + column, total.to(output_ptr.dtype.element_ty), mask=inside
    )
