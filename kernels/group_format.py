"""Weights of 4 bits in groups of 32 inputs, each with a scale and a minimum: one form for all.

A weight is its group's scale times its code, 0 to 15, plus its group's minimum. What the formats of
checkpoints call a zero point or an offset is a minimum here, and their larger groups are several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 32
_LARGEST_CODE = 15
_ROUNDED_TOGETHER = 1 << 22  # weights that exist in float32, for a moment


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A matrix of `in_features` columns; columns beyond those fill up the last group."""

    in_features: int
    codes: Tensor  # [rows, groups * 32] uint8
    scales: Tensor  # [rows, groups] float32
    minima: Tensor  # [rows, groups] float32

    def dequantize(self) -> Tensor:
        """The weights, float32 [rows, in_features]."""
        groups = self.codes.view(*self.scales.shape, GROUP).float()
        weights = groups.mul_(self.scales[..., None]).add_(self.minima[..., None])
        return weights.flatten(1)[:, : self.in_features]


def group(weight: Tensor) -> GroupedWeight:
    """Round to the nearest of 16 steps between the least and the greatest weight of each group.

    Scales and minima are rounded to half precision first, as kernels keep them.
    """
    parts = torch.split(weight, max(1, _ROUNDED_TOGETHER // weight.shape[1]))
    return concatenate([_group(part) for part in parts])


def concatenate(parts: Sequence[GroupedWeight]) -> GroupedWeight:
    """Matrices of the same inputs, one below the other."""
    return GroupedWeight(
        parts[0].in_features,
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.minima for part in parts]),
    )


def _group(weight: Tensor) -> GroupedWeight:
    in_features = weight.shape[1]
    values = functional.pad(weight.float(), (0, -in_features % GROUP)).view(len(weight), -1, GROUP)
    least, greatest = values.aminmax(dim=2)
    minima = least.half().float()
    scales = greatest.sub_(minima).div_(_LARGEST_CODE).half().float()
    codes = values.sub(minima[..., None]).div_(scales.clamp_min(1e-30)[..., None]).round_()
    codes = codes.clamp_(0, _LARGEST_CODE).to(torch.uint8)
    return GroupedWeight(in_features, codes.flatten(1), scales, minima)
