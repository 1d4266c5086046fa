"""Matrix products by the compiled library, whose rows never depend on each other.

On a CPU a step that generates a token for each of a few sequences takes as long as reading its
weights. The library (`linear.c`) multiplies faster than torch at every number of rows. It sums each
output in the order of the inputs, so that a row's result depends neither on its batch-mates nor on
the number of threads.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native import library
from kernels.types import Linear, Quantization
from kernels.weight_format import quantize

_STRIP = 16  # output columns that are packed side by side
_WORDS = 16  # to whose multiple a column is padded: 4 bytes each
_ACTIVATIONS = (torch.float32, torch.bfloat16)
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


def pack(
    weight: Tensor,
    bias: Tensor | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> Linear:
    """See `kernels.linear.pack`; weights are float32 or bfloat16."""
    del batch_invariant  # every product here is
    _try_tiles()
    return _Packed(weight, bias, quantization)


def packed_address(product: Linear) -> int | None:
    """Of the `pw_linear_weights` of a product by the compiled library; `None` for another one."""
    return product.address if isinstance(product, _Packed) else None


class _Packed:
    """One product, reordered to strips of outputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None, quantization: Quantization) -> None:
        self.out_features, self.in_features = weight.shape
        matrix, scales, zeros = weight, None, None
        if quantization == "int8":
            matrix, scales = quantize(weight)
            zeros = _whole_strips(matrix.sum(1, dtype=torch.int32).mul_(128))
            scales = _whole_strips(scales)
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
        library.trust_tiles(partial(_Packed(weight, None, quantization), x))


def _whole_strips(values: Tensor) -> Tensor:
    """Zeros for the columns that fill up the last strip."""
    return functional.pad(values, (0, -len(values) % _STRIP)).contiguous()


def _whole_words(matrix: Tensor) -> Tensor:
    """Zeros for the inputs that fill up the last words."""
    multiple = 4 * _WORDS // matrix.itemsize
    missing = -matrix.shape[1] % multiple
    return functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()


class _Description(ctypes.Structure):
    """`pw_linear_weights` of `linear.h`."""

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
