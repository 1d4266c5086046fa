"""Weights of 4 or 8 bits in groups of 32 inputs, each with a scale and a minimum: one form for all.

A weight is its group's scale times its code, 0 to 15 or 255, plus its group's minimum. What the
formats of checkpoints call a zero point or an offset is a minimum here, their larger groups are
several, a scale for a whole row is that of each of its groups, and codes of 5 bits are some of 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

Bits = Literal[4, 8]

GROUP: Final = 32
_ROUNDED_TOGETHER: Final = 1 << 22  # weights that exist in float32, for a moment


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A matrix of `in_features` columns; columns beyond those fill up the last group."""

    in_features: int
    bits: Bits
    codes: Tensor  # [rows, groups * 32] uint8
    scales: Tensor  # [rows, groups] float32
    minima: Tensor  # [rows, groups] float32

    def dequantize(self) -> Tensor:
        """The weights, float32 [rows, in_features]."""
        groups = self.codes.view(*self.scales.shape, GROUP).float()
        weights = groups.mul_(self.scales[..., None]).add_(self.minima[..., None])
        return weights.flatten(1)[:, : self.in_features]


def group(weight: Tensor, bits: Bits = 4) -> GroupedWeight:
    """Round to the nearest of 16 or 256 steps between a group's least and its greatest weight.

    Scales and minima are rounded to half precision first, as kernels keep them.
    """
    parts = torch.split(weight, max(1, _ROUNDED_TOGETHER // weight.shape[1]))
    return concatenate([_group(part, bits) for part in parts])


def concatenate(parts: Sequence[GroupedWeight]) -> GroupedWeight:
    """Matrices of the same inputs, one below the other; of 8 bits, if any of them is."""
    return GroupedWeight(
        parts[0].in_features,
        max(part.bits for part in parts),
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.minima for part in parts]),
    )


def _group(weight: Tensor, bits: Bits) -> GroupedWeight:
    in_features, largest_code = weight.shape[1], 2**bits - 1
    values = functional.pad(weight.float(), (0, -in_features % GROUP)).view(len(weight), -1, GROUP)
    least, greatest = values.aminmax(dim=2)
    minima = least.half().float()
    scales = greatest.sub_(minima).div_(largest_code).half().float()
    codes = values.sub(minima[..., None]).div_(scales.clamp_min(1e-30)[..., None]).round_()
    codes = codes.clamp_(0, largest_code).to(torch.uint8)
    return GroupedWeight(in_features, bits, codes.flatten(1), scales, minima)
