"""Plain torch: penalties, over the whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def penalise(scores: Tensor, counts: Tensor, slots: Tensor, numbers: Tensor) -> Tensor:
    """See `kernels.penalties.penalise`."""
    scores = scores.to(torch.float32)
    codes = counts.index_select(0, slots.clamp(min=0)) * (slots >= 0)[:, None]
    factor, frequency, presence = numbers[:, :, None].unbind()
    times = codes >> 1
    changed = torch.where(scores > 0, scores / factor, scores * factor)
    changed = changed - times * frequency - (times > 0) * presence
    return torch.where(codes > 0, changed, scores)
