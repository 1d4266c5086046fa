"""Matrix products by the compiled library, whose rows never depend on each other.

On a CPU a step that generates a token for each of a few sequences takes as long as reading its
weights. The library (`linear.c`) multiplies faster than torch at every number of rows. It sums each
output in the order of the inputs, so that a row's result depends neither on its batch-mates nor on
the number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from struct import Struct

import torch
from torch import Tensor
from torch.nn import functional

from kernels.huge_pages import Arena
from kernels.native import library
from kernels.types import Linear, Quantization
from kernels.weight_format import GROUP, GroupedWeight, quantize

_WEIGHTS = Struct("=4q4q")
"""`pw_linear_weights` of `linear.h`."""
_STRIP = 16  # output columns that are packed side by side
_WORDS = 16  # to whose multiple a column is padded: 4 bytes each
_ACTIVATIONS = (torch.float32, torch.bfloat16)
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_GROUP_TYPES = {(4, False): 3, (8, False): 4, (4, True): 5}
_GROUP_WORDS = {4: 5, 8: 9}
_HALF_EXPONENT = 15  # 2 to this power is half precision's largest
_memory = Arena()


def pack(
    weight: Tensor,
    bias: Tensor | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> Linear:
    """See `kernels.linear.pack`; weights are float32 or bfloat16."""
    del batch_invariant  # every product here is
    _try_tiles()
    return _pack(weight, bias, quantization)


def pack_groups(weight: GroupedWeight, bias: Tensor | None, batch_invariant: bool) -> Linear:
    """See `kernels.linear.pack_groups`."""
    del batch_invariant  # every product here is
    weight, factors = _within_half(weight)
    groups = _strips_of_groups(weight)
    shape = (len(weight.codes), weight.in_features)
    words = _GROUP_WORDS[weight.bits] * groups.shape[1]
    columns = (None if bias is None else bias.float(), factors, None)
    packed = _memory.take(groups.nbytes).copy_(groups.view(-1))
    kind = _GROUP_TYPES[weight.bits, weight.are_floats]
    return _Packed(shape, kind, words, packed, columns)


def packed_address(product: Linear) -> int | None:
    """Of the `pw_linear_weights` of a product by the compiled library; `None` for another one."""
    return product.address if isinstance(product, _Packed) else None


class _Packed:
    """One product, reordered to strips of outputs."""

    def __init__(
        self,
        shape: tuple[int, int],
        kind: int,
        words: int,
        packed: Tensor,
        columns: Sequence[Tensor | None],
    ) -> None:
        """`words` is that of `linear.h`; `columns` are biases, scales and zeros, by output."""
        self.out_features, self.in_features = shape
        padded = [None if values is None else _whole_strips(values) for values in columns]
        self._memory = [tensor for tensor in (packed, *padded) if tensor is not None]
        self.nbytes = sum(tensor.nbytes for tensor in self._memory)
        places = map(library.pointer, (packed, *padded))
        numbers = (self.in_features, self.out_features, words, kind)
        self._description = ctypes.create_string_buffer(_WEIGHTS.pack(*numbers, *places))
        self.address = ctypes.addressof(self._description)

    def __call__(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        if width != self.in_features or x.dtype not in _ACTIVATIONS:
            raise ValueError(f"x: {x.dtype} of width {width} does not fit this product")
        x = x.contiguous()
        output = x.new_empty((rows, self.out_features))
        _multiply(self.address, rows, _TYPES[x.dtype], x.data_ptr(), output.data_ptr())
        return output


def _pack(weight: Tensor, bias: Tensor | None, quantization: Quantization) -> _Packed:
    matrix, scales, zeros = weight, None, None
    if quantization == "int8":
        matrix, scales = quantize(weight)
        zeros = matrix.sum(1, dtype=torch.int32).mul_(128)
    rows = _whole_words(matrix)
    words = rows.shape[1] * rows.itemsize // 4
    strips = -(-len(weight) // _STRIP)
    packed = _memory.take(4 * strips * words * _STRIP)
    _reorder(rows.data_ptr(), len(weight), words, packed.data_ptr())
    columns = (None if bias is None else bias.float(), scales, zeros)
    return _Packed((len(weight), weight.shape[1]), _TYPES[matrix.dtype], words, packed, columns)


def _within_half(weight: GroupedWeight) -> tuple[GroupedWeight, Tensor | None]:
    """Scales and minima that half precision holds, and a factor for each row, if it takes them.

    Factors are powers of two: what half precision has no exponents for loses no digits to that.
    """
    numbers = torch.stack([weight.scales, weight.minima])
    if torch.equal(numbers.half().float(), numbers):
        return weight, None
    _, exponents = numbers.abs().amax(dim=(0, 2)).frexp()
    factors = torch.ldexp(torch.ones(len(exponents)), exponents - _HALF_EXPONENT)
    scales, minima = numbers / factors[:, None]
    return replace(weight, scales=scales, minima=minima), factors


def _strips_of_groups(weight: GroupedWeight) -> Tensor:
    """As `linear.h` describes weights in groups: uint8 [strips, groups, bytes of a group]."""
    numbers = torch.stack([weight.scales, weight.minima], dim=2).half()
    rows, groups = weight.scales.shape
    padding = (0, groups % 2, 0, -rows % _STRIP)
    numbers = functional.pad(numbers, (0, 0, *padding))
    codes = functional.pad(weight.codes, (0, groups % 2 * GROUP, 0, -rows % _STRIP))
    words = codes.view(-1, _STRIP, numbers.shape[1], 2, 4, 4)
    if weight.bits == 4:
        words = words[:, :, :, :1] | words[:, :, :, 1:] << 4
    parts = (
        words.flatten(3, 4).permute(0, 2, 3, 1, 4),  # [strips, groups, words, columns, bytes]
        numbers.view(-1, _STRIP, numbers.shape[1], 2).permute(0, 2, 3, 1).contiguous(),
    )
    return torch.cat([part.flatten(2).view(torch.uint8) for part in parts], dim=2)


@cache
def _try_tiles() -> None:
    random = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 160, generator=random).bfloat16() for rows in (72, 40))
    schemes: tuple[Quantization, ...] = ("none", "int8")
    for quantization in schemes:
        library.trust_tiles(partial(_pack(weight, None, quantization), x))


def _whole_strips(values: Tensor) -> Tensor:
    """Zeros for the columns that fill up the last strip."""
    return functional.pad(values, (0, -len(values) % _STRIP)).contiguous()


def _whole_words(matrix: Tensor) -> Tensor:
    """Zeros for the inputs that fill up the last words."""
    multiple = 4 * _WORDS // matrix.itemsize
    missing = -matrix.shape[1] % multiple
    return functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()


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
