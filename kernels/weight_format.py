"""How weights are rounded to 8 bits for products: a scale for each output, outliers rotated away.

In the product itself rows of activations are rotated as well, and get a scale each ("W8A8"; the
scales as in ZeroQuant, arXiv 2206.01861, section 4.1). Machines without instructions for int8
quantize the weights alone.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

_BLOCK = 64  # inputs that are rotated together
_QUANTIZED_TOGETHER = 1 << 22  # weights that exist in float32, for a moment


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate and round to nearest in int8, a scale for each row.

    Returns int8 [rows, columns padded to blocks] and float32 [rows].
    """
    matrices, scales = [], []
    for part in torch.split(weight, max(1, _QUANTIZED_TOGETHER // weight.shape[1])):
        values = rotate(part)
        scale = values.abs().amax(1).div_(127)
        matrices.append(values.div_(scale.clamp_min(1e-30)[:, None]).round_().to(torch.int8))
        scales.append(scale)
    return torch.cat(matrices), torch.cat(scales)


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
