"""Plain torch: penalties, over the whole vocabulary or for some of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def penalise(scores: Tensor, counts: Tensor, slots: Tensor, numbers: Tensor) -> Tensor:
    """See `kernels.penalties.penalise`."""
    scores = scores.to(torch.float32)
    codes = counts.index_select(0, slots.clamp(min=0)) * (slots >= 0)[:, None]
    return torch.where(codes > 0, penalised(scores, codes >> 1, numbers[:, :, None]), scores)


def penalised(values: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
    """The scores of tokens that are there, `counts` times in the output.

    `values` and `counts` have one shape, and `numbers` has it behind its first dimension, those of
    `kernels.penalties.penalise`.
    """
    factor, frequency, presence = numbers.unbind()
    values = torch.where(values > 0, values / factor, values * factor)
    return values - counts * frequency - (counts > 0) * presence
