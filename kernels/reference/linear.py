"""Matrix products by torch, of weights in the order that oneDNN likes best, where it is there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels.types import Linear, Quantization
from kernels.weight_format import GroupedWeight, quantize, rotate

_WIDENED_ROWS = 4096  # of weights in groups, at a time


def pack(
    weight: Tensor,
    bias: Tensor | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> Linear:
    """See `kernels.linear.pack`; for CPUs."""
    if quantization == "int8":
        return _Int8(weight, bias, batch_invariant)
    if batch_invariant:
        return Product(weight, bias, _row_by_row)
    if _has_onednn(weight):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        return Product(packed, bias, _onednn)
    return Product(weight, bias, functional.linear)


def pack_groups(weight: GroupedWeight, bias: Tensor | None, batch_invariant: bool) -> Linear:
    """See `kernels.linear.pack_groups`."""
    return _Grouped(weight, bias, batch_invariant)


class Product:
    """A product of weights as they are, by any function that multiplies like torch's `linear`."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._weight, self._bias = weight, bias
        self._multiply = multiply

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self._multiply(x, self._weight, self._bias)


class _Int8:
    def __init__(self, weight: Tensor, bias: Tensor | None, batch_invariant: bool) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scales = quantize(weight)
        self._bias = bias
        self._batch_invariant = batch_invariant
        self.nbytes = self._weight.nbytes + self._scales.nbytes
        self.nbytes += 0 if bias is None else bias.nbytes
        # Others' int8 products by oneDNN may overflow 16 bits.
        self._quantizes_rows = torch.cpu._is_vnni_supported()
        if self._quantizes_rows:
            self._weight = torch.ops.onednn.qlinear_prepack(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        parts = torch.split(rotate(x), 1 if self._batch_invariant else max(1, len(x)))
        output = torch.cat([self._multiply(part) for part in parts])
        return (output if self._bias is None else output.add_(self._bias)).to(x.dtype)

    def _multiply(self, x: Tensor) -> Tensor:
        if not self._quantizes_rows:
            return functional.linear(x, self._weight.float()).mul_(self._scales)
        scales = x.abs().amax(1, keepdim=True).div_(127).clamp_min_(1e-30)
        rows = x.div(scales).round_().add_(128).to(torch.uint8)
        zeros = torch.zeros(self.out_features, dtype=torch.int32)
        factors = (rows, 1.0, 128, self._weight, self._scales, zeros)
        output: Tensor = torch.ops.onednn.qlinear_pointwise(
            *factors, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return output.mul_(scales)


class _Grouped:
    """A product of weights of 4 or 8 bits, widened in each call: it saves memory, not time."""

    def __init__(self, weight: GroupedWeight, bias: Tensor | None, batch_invariant: bool) -> None:
        self.out_features, self.in_features = len(weight.codes), weight.in_features
        self._bits, self._are_floats = weight.bits, weight.are_floats
        codes = weight.codes
        self._codes = codes[:, ::2] | codes[:, 1::2] << 4 if weight.bits == 4 else codes
        self._scales, self._minima, self._bias = weight.scales, weight.minima, bias
        self._batch_invariant = batch_invariant
        tensors = (self._codes, self._scales, self._minima, self._bias)
        self.nbytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def __call__(self, x: Tensor) -> Tensor:
        multiply = _row_by_row if self._batch_invariant else functional.linear
        parts = range(0, self.out_features, _WIDENED_ROWS)
        output = torch.cat([multiply(x.float(), self._rows(part), None) for part in parts], dim=1)
        return (output if self._bias is None else output.add_(self._bias)).to(x.dtype)

    def _rows(self, first: int) -> Tensor:
        """Some rows, from `first` on, in float32."""
        some = slice(first, first + _WIDENED_ROWS)
        codes = self._codes[some]
        if self._bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
        parts = codes, self._scales[some], self._minima[some], self._are_floats
        return GroupedWeight(self.in_features, self._bits, *parts).dequantize()


def _row_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.cat([functional.linear(row, weight, bias) for row in torch.split(x, 1)])


def _has_onednn(weight: Tensor) -> bool:
    if not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output
