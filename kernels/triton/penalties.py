"""Triton: penalties in one pass over scores and counts."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Every operation is rounded, as it is elsewhere."""


def penalise(scores: Tensor, counts: Tensor, slots: Tensor, numbers: Tensor) -> Tensor:
    """See `kernels.penalties.penalise`."""
    num_rows, size = scores.shape
    output = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    penalise_rows[num_rows, triton.cdiv(size, BLOCK)](
        output,
        scores,
        counts,
        slots,
        numbers,
        scores.stride(0),
        num_rows,
        size,
        BLOCK=BLOCK,
        **OPTIONS,
    )
    return output


@triton.jit(do_not_specialize=["num_rows"])
def penalise_rows(
    output_ptr,
    scores_ptr,
    counts_ptr,
    slots_ptr,
    numbers_ptr,
    stride,
    num_rows,
    size,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` scores of one row."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < size
    scores = tl.load(scores_ptr + row * stride + tokens, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots_ptr + row)
    if slot >= 0:
        codes = tl.load(counts_ptr + slot * size + tokens, mask=inside, other=0)
        factor = tl.load(numbers_ptr + row)
        frequency = tl.load(numbers_ptr + num_rows + row)
        presence = tl.load(numbers_ptr + 2 * num_rows + row)
        times = (codes >> 1).to(tl.float32)
        changed = tl.where(scores > 0, tl.div_rn(scores, factor), scores * factor)
        changed = changed - times * frequency - (times > 0).to(tl.float32) * presence
        scores = tl.where(codes > 0, changed, scores)
    tl.store(output_ptr + row * size + tokens, scores, mask=inside)
