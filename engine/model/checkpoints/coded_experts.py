"""Experts whose weights stay in the checkpoint's codes; as `coded_linear` has single products.

A module of experts has all matrices of a kind in one parameter: [experts, out, in], or transposed.
Without memory of its own it reads them whenever it computes, and forgets them behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.checkpoints.coded_linear import gives_zeros
from kernels.weight_format import GroupedWeight

ReadExpert = Callable[[int], GroupedWeight]
"""Reads the matrix [out_features, in_features] of an expert, each time anew."""


class CodedParameter:
    """What a module of experts has in place of a parameter."""

    def __init__(self, shape: torch.Size, is_transposed: bool, read: ReadExpert) -> None:
        """`shape` is the parameter's."""
        self.shape = shape
        self.read = read
        self._is_transposed = is_transposed

    def widen(self, dtype: torch.dtype) -> Tensor:
        """The parameter."""
        if gives_zeros():
            return torch.zeros((), dtype=dtype).expand(self.shape)
        whole = torch.empty(self.shape, dtype=dtype)
        for expert, place in enumerate(whole):
            matrix = self.read(expert).dequantize()
            place.copy_(matrix.T if self._is_transposed else matrix)
        return whole


def keep_in_codes(module: nn.Module, parameters: Mapping[str, CodedParameter]) -> None:
    """Take these parameters from the module, which has them while it computes."""
    module.coded = dict(parameters)  # type: ignore[assignment]

    def begin(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        for name, coded in parameters.items():
            whole = coded.widen(arguments[0].dtype)
            module.register_parameter(name, nn.Parameter(whole, requires_grad=False))

    def end(*_: object) -> None:
        for name in parameters:
            module.register_parameter(name, None)

    end()
    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, always_call=True)


def coded_parameters(module: nn.Module) -> dict[str, CodedParameter]:
    """What a module of experts has in codes, by the names of its parameters."""
    found: dict[str, CodedParameter] = getattr(module, "coded", {})
    return found
