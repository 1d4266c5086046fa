"""The door to a model's matrix products: weights packed once, for where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels import backends
from kernels.types import Linear, Quantization
from kernels.weight_format import GroupedWeight, concatenate, group


def pack(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    *,
    quantization: Quantization = "none",
    batch_invariant: bool = False,
) -> Linear:
    """Stack matrices [out_i, in_features] to one product with sum(out_i) outputs.

    The originals can be dropped: the result holds a packed copy or, of a single matrix that torch
    multiplies as it is, that memory. With `batch_invariant` the result of a row does not depend on
    the rows beside it. Raises `ValueError` for matrices that do not go together, and for a
    quantization that the device does not have.
    """
    if len({(weight.shape[1], weight.dtype, weight.device) for weight in weights}) != 1:
        raise ValueError("weights: stacked matrices must agree in inputs, dtype and device")
    if quantization != "none" and weights[0].device.type != "cpu":
        raise ValueError(f"quantize: {quantization} products are for CPUs")
    if quantization == "int4":
        groups = [group(weight) for weight in weights]
        return pack_groups(groups, biases, batch_invariant=batch_invariant)
    bias = _stack_biases(weights, biases or [None] * len(weights))
    weight = torch.cat(list(weights)) if len(weights) > 1 else weights[0].detach()
    product: Linear = _room(weight).pack(weight, bias, quantization, batch_invariant)
    return product


def pack_groups(
    weights: Sequence[GroupedWeight],
    biases: Sequence[Tensor | None] | None = None,
    *,
    batch_invariant: bool = False,
) -> Linear:
    """Stack matrices of 4 or 8 bits to one product, on a CPU, as they are; see `pack`.

    Kernels keep scales and minima in half precision. Raises `ValueError` for matrices that do not
    go together.
    """
    if len({weight.in_features for weight in weights}) != 1:
        raise ValueError("weights: stacked matrices must agree in inputs")
    originals = [weight.scales for weight in weights]
    bias = _stack_biases(originals, biases or [None] * len(weights))
    room = _room(originals[0])
    product: Linear = room.pack_groups(concatenate(weights), bias, batch_invariant)
    return product


def _room(weight: Tensor) -> Any:
    computed = weight.device.type != "cpu" or weight.dtype in (torch.float32, torch.bfloat16)
    return backends.room("linear", weight.device, None if computed else "reference")


def _stack_biases(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    pairs = zip(weights, biases, strict=True)
    return torch.cat(
        [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in pairs]
    )
