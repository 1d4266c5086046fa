"""Triton: the rows of each expert, and the blocks that products take them in."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024


class SortedRows(NamedTuple):
    """A row for each token and each of its experts, those of an expert one behind the other.

    They are numbered as they lie in [tokens, experts of a token]; both tensors are int32.
    """

    order: Tensor  # [num_rows], the number of each
    blocks: Tensor
    """[3, num_blocks]: of each block its expert, its first row and where it ends, in sorted order.

    Of those that are not needed the end is not behind the first row."""


def sort_rows(chosen: Tensor, uses: Tensor, block_rows: int) -> SortedRows:
    """`chosen` is int32 [tokens, experts of a token], contiguous; a block has `block_rows` rows.

    Counts in `uses`, as `kernels.types.Experts` has it.
    """
    num_rows, num_experts = chosen.numel(), len(uses) - 2
    num_blocks = most_blocks(num_rows, num_experts, block_rows)
    rows = SortedRows(chosen.new_empty(num_rows), chosen.new_empty((3, num_blocks)))
    with torch.cuda.device(chosen.get_device()):  # Triton launches on the current device
        sort_by_expert[(num_experts,)](
            rows.order,
            rows.blocks,
            uses,
            chosen,
            num_rows,
            num_blocks,
            NUM_EXPERTS=num_experts,
            ROWS=block_rows,
            TILE=TILE,
        )
    return rows


def most_blocks(num_rows: int, num_experts: int, block_rows: int) -> int:
    """That any choice of experts needs: each may leave its last block with one row."""
    used = min(num_rows, num_experts)
    return used + (num_rows - used) // block_rows


@triton.jit(do_not_specialize=["num_rows", "num_blocks"])
def sort_by_expert(
    order_ptr,
    blocks_ptr,
    uses_ptr,
    chosen_ptr,
    num_rows,
    num_blocks,
    NUM_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: the rows of one expert, in the order of tokens, and its blocks."""
    BINS: tl.constexpr = triton.next_power_of_2(NUM_EXPERTS)
    own = tl.program_id(0)
    experts = tl.arange(0, BINS)
    lanes = tl.arange(0, TILE)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, num_rows, TILE):
        inside = start + lanes < num_rows
        chosen = tl.load(chosen_ptr + start + lanes, mask=inside, other=0)
        counts += tl.histogram(chosen, BINS, mask=inside)
    first_row = tl.sum(tl.where(experts < own, counts, 0))
    end_row = first_row + tl.sum(tl.where(experts == own, counts, 0))

    tl.store(uses_ptr + own, tl.load(uses_ptr + own) + end_row - first_row)
    if own == 0:
        behind = uses_ptr + NUM_EXPERTS
        tl.store(behind, tl.load(behind) + tl.sum((counts > 0).to(tl.int32)))
        tl.store(behind + 1, tl.load(behind + 1) + 1)

    place = first_row
    for start in range(0, num_rows, TILE):
        chosen = tl.load(chosen_ptr + start + lanes, mask=start + lanes < num_rows, other=-1)
        mine = (chosen == own).to(tl.int32)
        at = place + tl.cumsum(mine, 0) - 1
        tl.store(order_ptr + at, start + lanes, mask=mine > 0)
        place += tl.sum(mine)

    needed = (counts + ROWS - 1) // ROWS
    first_block = tl.sum(tl.where(experts < own, needed, 0))
    end_block = first_block + tl.sum(tl.where(experts == own, needed, 0))
    if own == NUM_EXPERTS - 1:
        end_block = num_blocks  # those that nobody needs begin behind its rows
    for start in range(first_block, end_block, TILE):
        block = start + lanes
        row = first_row + (block - first_block) * ROWS
        to = blocks_ptr + block
        tl.store(to, own, mask=block < end_block)
        tl.store(to + num_blocks, row, mask=block < end_block)
        tl.store(to + 2 * num_blocks, tl.minimum(row + ROWS, end_row), mask=block < end_block)
