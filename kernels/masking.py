"""Scores of tokens that may not be drawn."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor


def mask(scores: Tensor, rows: Tensor, words: Tensor) -> Tensor:
    """A copy of `scores` with -inf where tokens may not be drawn.

    `scores` is [num_rows, vocab_size]. Row `rows[i]` ([num_masked] int64, all different) may draw
    the tokens whose bits are set in `words[i]` ([num_masked, num_words] int32, contiguous, lowest
    bits first); the other rows may draw all.
    """
    if not len(rows):
        return scores.clone()
    size = scores.shape[1]
    by_byte = _bits(words.device)[words.view(torch.uint8).to(torch.int32)]
    allowed = by_byte.view(len(words), 32 * words.shape[1])[:, :size]
    if len(rows) == len(scores):
        return torch.where(allowed, scores, -math.inf)
    return scores.index_copy(0, rows, torch.where(allowed, scores[rows], -math.inf))


@cache
def _bits(device: torch.device) -> Tensor:
    """Of each byte: [256, 8] bool, lowest first."""
    bytes_ = torch.arange(256, device=device)[:, None]
    return (bytes_ >> torch.arange(8, device=device)) & 1 > 0
