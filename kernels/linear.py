"""The matrix products of a model: weights packed once, for the device that they are used on.

On a CPU a step that generates a token for each of a few sequences takes as long as reading its
weights. There the compiled library multiplies (`kernels/native/linear.c`), faster than torch at
every number of rows. It sums each output in the order of the inputs, so that a row's result never
depends on its batch-mates, nor on the number of threads.

With `quantization="int8"` weights are rounded to 8 bits with a scale for each output, and rows of
activations with a scale for each row, in the product itself ("W8A8"; the scales as in ZeroQuant,
arXiv 2206.01861, section 4.1), after both were rotated, which takes their outliers away (see
`_rotate`). Machines without instructions for int8 quantize the weights alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native import library

Quantization = Literal["none", "int8"]

_STRIP = 16  # output columns that are packed side by side
_BLOCK = 64  # inputs that are rotated together
_WORDS = 16  # to whose multiple a column is padded: 4 bytes each
_ACTIVATIONS = (torch.float32, torch.bfloat16)
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_QUANTIZED_TOGETHER = 1 << 22  # weights that exist in float32, for a moment


class Linear(Protocol):
    """One product, with the weights that it needs."""

    in_features: int
    out_features: int
    nbytes: int
    """Memory of weights, scales and biases."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in_features] to [tokens, out_features], in the type of `x`."""
        ...


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
    bias = _stack_biases(weights, biases or [None] * len(weights))
    on_cpu = weights[0].device.type == "cpu"
    if quantization == "int8" and not on_cpu:
        raise ValueError("quantize: int8 products are for CPUs")
    if on_cpu and library.available() and weights[0].dtype in _ACTIVATIONS:
        _try_tiles()
        return _Packed(weights, bias, quantization)
    if quantization == "int8":
        return _Int8(weights, bias, batch_invariant)
    return _Plain(weights, bias, batch_invariant)


def packed_address(product: Linear) -> int | None:
    """Of the `pw_linear_weights` of a product by the compiled library; `None` for another one."""
    return product.address if isinstance(product, _Packed) else None


class _Packed:
    """A product by the compiled library, on a CPU."""

    def __init__(
        self, weights: Sequence[Tensor], bias: Tensor | None, quantization: Quantization
    ) -> None:
        self.in_features = weights[0].shape[1]
        self.out_features = sum(map(len, weights))
        scales = zeros = None
        if quantization == "int8":
            matrix, scales = _quantize(weights)
            zeros = _whole_strips(matrix.sum(1, dtype=torch.int32).mul_(128))
            scales = _whole_strips(scales)
        else:
            matrix = torch.cat(list(weights)) if len(weights) > 1 else weights[0].detach()
        rows = _whole_words(matrix)
        words = rows.shape[1] * rows.itemsize // 4
        strips = -(-self.out_features // _STRIP)
        packed = torch.empty(strips * words * _STRIP, dtype=torch.int32)
        _reorder(rows.data_ptr(), self.out_features, words, packed.data_ptr())
        bias = None if bias is None else _whole_strips(bias.float())
        self._memory = [tensor for tensor in (packed, bias, scales, zeros) if tensor is not None]
        self.nbytes = sum(tensor.nbytes for tensor in self._memory)
        self._description = _Description(
            self.in_features,
            self.out_features,
            words,
            _TYPES[matrix.dtype],
            *(
                0 if tensor is None else tensor.data_ptr()
                for tensor in (packed, bias, scales, zeros)
            ),
        )
        self.address = ctypes.addressof(self._description)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        rows, width = x.shape
        if width != self.in_features or x.dtype not in _ACTIVATIONS:
            raise ValueError(f"x: {x.dtype} of width {width} does not fit this product")
        x = x.contiguous()
        output = x.new_empty((rows, self.out_features))
        _multiply(self.address, rows, _TYPES[x.dtype], x.data_ptr(), output.data_ptr())
        return output


@cache
def _try_tiles() -> None:
    random = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 160, generator=random).bfloat16() for rows in (72, 40))
    schemes: tuple[Quantization, ...] = ("none", "int8")
    for quantization in schemes:
        library.trust_tiles(partial(_Packed([weight], None, quantization), x))


class _Plain:
    """A product by torch: on a GPU, of float16, and where the compiled library is missing."""

    def __init__(
        self, weights: Sequence[Tensor], bias: Tensor | None, batch_invariant: bool
    ) -> None:
        self.in_features = weights[0].shape[1]
        self.out_features = sum(map(len, weights))
        self._weight = torch.cat(list(weights)) if len(weights) > 1 else weights[0].detach()
        self._bias = bias
        self.nbytes = self._weight.nbytes + (0 if bias is None else bias.nbytes)
        self._product = _product(self._weight.device, batch_invariant)
        if self._product is functional.linear and _has_onednn(self._weight):
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight)
            self._product = _onednn

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self._product(x, self._weight, self._bias)


class _Int8:
    """A product of int8 weights by torch."""

    def __init__(
        self, weights: Sequence[Tensor], bias: Tensor | None, batch_invariant: bool
    ) -> None:
        self.in_features = weights[0].shape[1]
        self.out_features = sum(map(len, weights))
        self._weight, self._scales = _quantize(weights)
        self._bias = bias
        self._batch_invariant = batch_invariant
        self.nbytes = self._weight.nbytes + self._scales.nbytes
        self.nbytes += 0 if bias is None else bias.nbytes
        # Others' int8 products by oneDNN may overflow 16 bits.
        self._quantizes_rows = torch.cpu._is_vnni_supported()
        if self._quantizes_rows:
            self._weight = torch.ops.onednn.qlinear_prepack(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        parts = torch.split(_rotate(x), 1 if self._batch_invariant else max(1, len(x)))
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


def _product(
    device: torch.device, batch_invariant: bool
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    if not batch_invariant:
        return functional.linear
    if device.type == "cpu":
        return _row_by_row
    # Loaded only where there is a GPU.
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    product = import_module("kernels.triton.linear").linear
    return product


def _row_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.cat([functional.linear(row, weight, bias) for row in torch.split(x, 1)])


def _has_onednn(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or (
        weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def _stack_biases(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    pairs = zip(weights, biases, strict=True)
    return torch.cat(
        [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in pairs]
    )


def _quantize(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rotate and round to nearest in int8, a scale for each row.

    Returns int8 [rows, columns padded to blocks] and float32 [rows].
    """
    step = max(1, _QUANTIZED_TOGETHER // weights[0].shape[1])
    matrices, scales = [], []
    for part in (part for weight in weights for part in torch.split(weight.detach(), step)):
        values = _rotate(part)
        scale = values.abs().amax(1).div_(127)
        matrices.append(values.div_(scale.clamp_min(1e-30)[:, None]).round_().to(torch.int8))
        scales.append(scale)
    return torch.cat(matrices), torch.cat(scales)


def _rotate(matrix: Tensor) -> Tensor:
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


def _whole_strips(values: Tensor) -> Tensor:
    """Zeros for the columns that fill up the last strip."""
    return functional.pad(values, (0, -len(values) % _STRIP)).contiguous()


def _whole_words(matrix: Tensor) -> Tensor:
    """Zeros for the inputs that fill up the last words."""
    multiple = 4 * _WORDS // matrix.itemsize
    missing = -matrix.shape[1] % multiple
    return functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()


class _Description(ctypes.Structure):
    """`pw_linear_weights` of `kernels/native/linear.h`."""

    _fields_ = (
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("type", ctypes.c_int64),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
    )


if library.available():
    _reorder = library.function(
        "pw_linear_pack", library.address, library.integer, library.integer, library.address
    )
    _multiply = library.function(
        "pw_linear",
        library.address,
        library.integer,
        library.integer,
        library.address,
        library.address,
    )
