"""Matrix products with weights that are prepared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Quantization = Literal["none", "int8"]


class Linear:
    """`x @ weight.T + bias` for one stacked weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias
        self.out_features, self.in_features = weight.shape

    @property
    def nbytes(self) -> int:
        """Memory of weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in_features] to [tokens, out_features], in x's dtype."""
        return functional.linear(x, self._weight, self._bias)


def pack(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    *,
    quantization: Quantization = "none",
    batch_invariant: bool = False,
) -> Linear:
    """Stack matrices [out_i, in] to one product that holds its own copy."""
    biases = biases or [None] * len(weights)
    bias = None
    if any(part is not None for part in biases):
        bias = torch.cat(
            [
                weight.new_zeros(len(weight)) if part is None else part
                for weight, part in zip(weights, biases, strict=True)
            ]
        )
    assert not batch_invariant
    weight = torch.cat(list(weights))
    if quantization == "int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        weight = (weight / scale).round_() * scale
    return Linear(weight, bias)
