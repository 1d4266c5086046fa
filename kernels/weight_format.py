"""How weights are rounded for products: to 8 bits by outputs, to 4 or 8 in groups of inputs.

In 8 bits each output has a scale, and outliers are rotated away.

In the product itself rows of activations are rotated as well, and get a scale each ("W8A8"; the
scales as in ZeroQuant, arXiv 2206.01861, section 4.1). Machines without instructions for int8
quantize the weights alone.

Weights of 4 or 8 bits in groups of 32 inputs, each with a scale and a minimum, have one form: a
weight is its group's scale times its code, 0 to 15 or 255, plus its group's minimum. What the
formats of checkpoints call a zero point or an offset is a minimum here, their larger groups are
several, a scale for a whole row is that of each of its groups, and codes of 5 bits are some of 8.
Floats of 4 bits (E2M1, in groups of 32 with a power of two: MXFP4, "OCP Microscaling Formats" 1.0)
have it, too, as steps that are not even: each is a whole number of halves, from -12 to 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

Bits = Literal[4, 8]

GROUP: Final = 32
ROUNDED_TOGETHER: Final = 1 << 18
"""Weights that exist in float32 for a moment, in a core's own cache."""
_FLOAT_STEPS: Final = torch.tensor(
    [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0], dtype=torch.uint8
)
"""What codes of E2M1 are in halves above the least of them, -6: a sign, then a magnitude."""
_BLOCK = 64  # inputs that are rotated together


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A matrix of `in_features` columns; columns beyond those fill up the last group."""

    in_features: int
    bits: Bits
    codes: Tensor  # [rows, groups * 32] uint8
    scales: Tensor  # [rows, groups] float32
    minima: Tensor  # [rows, groups] float32
    are_floats: bool = False
    """Codes are E2M1: in place of a code its number of halves above -6 is meant, 0 to 24."""

    def dequantize(self) -> Tensor:
        """The weights, float32 [rows, in_features]."""
        groups = self.steps().view(*self.scales.shape, GROUP).float()
        weights = groups.mul_(self.scales[..., None]).add_(self.minima[..., None])
        return weights.flatten(1)[:, : self.in_features]

    def steps(self) -> Tensor:
        """By what scales are multiplied, as `codes`."""
        return _FLOAT_STEPS[self.codes.int()] if self.are_floats else self.codes

    def in_bytes(self) -> GroupedWeight:
        """The same weights in codes of 8 bits."""
        return replace(self, bits=8, codes=self.steps(), are_floats=False)

    def take(self, rows: Tensor) -> GroupedWeight:
        """The matrix of these rows, in their order."""
        parts = self.codes[rows], self.scales[rows], self.minima[rows]
        return GroupedWeight(self.in_features, self.bits, *parts, self.are_floats)


def group(weight: Tensor, bits: Bits = 4) -> GroupedWeight:
    """Round to the nearest of 16 or 256 steps between a group's least and its greatest weight.

    Scales and minima are rounded to half precision first, as kernels keep them.
    """
    parts = torch.split(weight, max(1, ROUNDED_TOGETHER // weight.shape[1]))
    return concatenate([_group(part, bits) for part in parts])


def concatenate(parts: Sequence[GroupedWeight]) -> GroupedWeight:
    """Matrices of the same inputs, one below the other; of 8 bits, if their codes differ."""
    if len({(part.bits, part.are_floats) for part in parts}) > 1:
        parts = [part.in_bytes() for part in parts]
    return GroupedWeight(
        parts[0].in_features,
        parts[0].bits,
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.minima for part in parts]),
        parts[0].are_floats,
    )


def _group(weight: Tensor, bits: Bits) -> GroupedWeight:
    in_features, largest_code = weight.shape[1], 2**bits - 1
    values = functional.pad(weight.float(), (0, -in_features % GROUP)).view(len(weight), -1, GROUP)
    least, greatest = values.amin(2), values.amax(2)  # `aminmax` takes twice as long
    minima = least.half().float()
    scales = greatest.sub_(minima).div_(largest_code).half().float()
    codes = values.sub(minima[..., None]).div_(scales.clamp_min(1e-30)[..., None]).round_()
    codes = codes.clamp_(0, largest_code).to(torch.uint8)
    return GroupedWeight(in_features, bits, codes.flatten(1), scales, minima)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate and round to nearest in int8, a scale for each row.

    Returns int8 [rows, columns padded to blocks] and float32 [rows].
    """
    matrices, scales = [], []
    for part in torch.split(weight, max(1, ROUNDED_TOGETHER // weight.shape[1])):
        values = rotate(part)
        scale = values.abs().amax(1).div_(127)
        matrices.append(values.div_(scale.clamp_min(1e-30)[:, None]).round_().to(torch.int8))
        scales.append(scale)
    return torch.cat(matrices), torch.cat(scales)


def as_int8(weight: Tensor) -> Tensor:
    """The weights that a product in int8 multiplies by: float32, of the same shape."""
    codes, scales = quantize(weight)
    return _turned_back(codes.float().mul_(scales[:, None]), weight.shape[1])


def as_int4(weight: Tensor) -> Tensor:
    """The weights that a product in int4 multiplies by: float32, of the same shape."""
    return group(weight).dequantize()


def rows_as_int8(x: Tensor) -> Tensor:
    """Rows of activations as a product in int8 has them: float32, of the same shape."""
    return _turned_back(_in_steps(rotate(x)), x.shape[1])


def groups_as_int8(x: Tensor) -> Tensor:
    """Rows of activations as a product in groups has them, each group of inputs with a scale."""
    values = functional.pad(x.float(), (0, -x.shape[1] % GROUP))
    return _in_steps(values.view(-1, GROUP)).view(values.shape)[:, : x.shape[1]]


def _in_steps(rows: Tensor) -> Tensor:
    """Rounded to nearest of 127 steps up to a row's greatest magnitude."""
    steps = rows.abs().amax(1, keepdim=True).div_(127)
    return rows.div(steps.clamp_min(1e-30)).round_().mul_(steps)


def _turned_back(rotated: Tensor, width: int) -> Tensor:
    """Of so many columns; rotating is its own inverse."""
    return rotate(rotated)[:, :width]


def rotate(matrix: Tensor) -> Tensor:
    """Each block of 64 inputs times a Hadamard matrix, as the library does with activations.

    In float32, with zeros for the inputs that fill up the last block. The product is that of the
    originals, but neither factor has outliers any more that would make the scales of int8 coarse
    (QuaRot, arXiv 2404.00456, section 3).
    """
    padded = functional.pad(matrix.float(), (0, -matrix.shape[1] % _BLOCK))
    return (padded.view(-1, _BLOCK) @ _rotation()).view(padded.shape)


@cache
def _rotation() -> Tensor:
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    rotation = torch.ones(1, 1)
    while len(rotation) < _BLOCK:
        rotation = torch.kron(pair, rotation)
    return rotation.div_(_BLOCK**0.5)
