"""Triton: what may not be drawn is out, by packed bits, in one pass over the scores."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.masking import Masks

BLOCK = 2048
OPTIONS = {"num_warps": 4}


def masked(scores: Tensor, masks: Masks) -> Tensor:
    """A copy with -inf where tokens may not be drawn."""
    num_rows, size = scores.shape
    output = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    mask_rows[num_rows, triton.cdiv(size, BLOCK)](
        output,
        scores,
        masks.words,
        masks.places,
        scores.stride(0),
        masks.words.shape[1],
        size,
        BLOCK=BLOCK,
        **OPTIONS,
    )
    return output


@triton.jit
def mask_rows(
    output_ptr,
    scores_ptr,
    words_ptr,
    places_ptr,
    stride,
    num_words,
    size,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` scores of one row."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < size
    scores = tl.load(scores_ptr + row * stride + tokens, mask=inside, other=0.0).to(tl.float32)
    place = tl.load(places_ptr + row)
    if place >= 0:
        words = tl.load(words_ptr + place * num_words + tokens // 32, mask=inside, other=0)
        allowed = (words >> (tokens % 32)) & 1
        scores = tl.where(allowed > 0, scores, float("-inf"))
    tl.store(output_ptr + row * size + tokens, scores, mask=inside)
