"""Routing and experts by the compiled library: one call each for all tokens and experts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import Struct

import torch
from torch import Tensor

from kernels.native import library
from kernels.native.adapters import pack_rows
from kernels.native.layers import ACTIVATIONS
from kernels.native.library import TYPES, pointer
from kernels.native.linear import pack, pack_groups, packed_address
from kernels.types import (
    MOST_EXPERTS,
    Activation,
    AdaptedRows,
    Linear,
    Quantization,
    Routing,
    Scores,
)
from kernels.weight_format import GroupedWeight, group

_SCORES: dict[Scores, int] = {"softmax": 0, "sigmoid": 1, "softmax_near_best": 2}

_ROUTING = Struct("=7q3d")
"""`pw_routing` of `experts.h`, field by field."""

_EXPERTS = Struct("=5q")
"""`pw_experts`."""

_MIXING = Struct("=5q3q4q")
"""`pw_mixing`."""

_ADDITION = Struct("=3q3q")
"""`pw_addition`."""


def route(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """See `kernels.experts.route`."""
    logits = logits.contiguous()
    shape = (len(logits), routing.per_token)
    chosen, shares = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    places = (logits.data_ptr(), len(logits), chosen.data_ptr(), shares.data_ptr())
    _route(pack_routing(routing), *places)
    return chosen, shares


def pack_routing(routing: Routing) -> bytes:
    """A `pw_routing`, with a pointer to the correction, which must outlive it."""
    assert 1 <= routing.per_token <= routing.num_experts <= MOST_EXPERTS
    return _ROUTING.pack(
        pointer(routing.correction),
        routing.num_experts,
        routing.per_token,
        _SCORES[routing.scores],
        routing.num_groups,
        routing.kept_groups,
        routing.is_normalised,
        routing.least_sum,
        routing.scale,
        routing.margin,
    )


def add_shared(update: Tensor, shared: Tensor, gates: Tensor | None) -> None:
    """See `kernels.experts.add_shared`."""
    assert update.is_contiguous()
    assert shared.is_contiguous()
    numbers = (*update.shape, TYPES[update.dtype])
    _add_shared(_ADDITION.pack(*map(pointer, (update, shared, gates)), *numbers))


def pack_experts(
    gate_up: Sequence[Tensor | GroupedWeight],
    down: Sequence[Tensor | GroupedWeight],
    activation: Activation,
    gate_up_biases: Sequence[Tensor] | None,
    down_biases: Sequence[Tensor] | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> PackedExperts:
    """See `kernels.experts.pack_experts`; weights are float32 or bfloat16."""
    del batch_invariant  # all are
    none = [None] * len(down)
    into, back = [], []
    for first, second, first_bias, second_bias in zip(
        gate_up, down, gate_up_biases or none, down_biases or none, strict=True
    ):
        into.append(_pack(first, first_bias, quantization))
        back.append(_pack(second, second_bias, quantization))
    return PackedExperts(into, back, activation)


def _pack(
    weight: Tensor | GroupedWeight, bias: Tensor | None, quantization: Quantization
) -> Linear:
    if isinstance(weight, Tensor) and quantization == "int4":
        weight = group(weight)
    if isinstance(weight, GroupedWeight):
        return pack_groups(weight, bias, batch_invariant=True)
    return pack(weight, bias, quantization, batch_invariant=True)


class PackedExperts:
    """The networks of a layer, each of two packed products."""

    def __init__(self, into: list[Linear], back: list[Linear], activation: Activation) -> None:
        self.num_experts = len(into)
        self.hidden_size = back[0].out_features
        self.nbytes = sum(product.nbytes for product in (*into, *back))
        self._products = into, back  # their memory must outlive the addresses
        self._addresses = [_addresses(products) for products in self._products]
        self.uses = torch.zeros(self.num_experts + 2, dtype=torch.int64)
        places = map(ctypes.addressof, self._addresses)
        numbers = (self.num_experts, ACTIVATIONS[activation], self.uses.data_ptr())
        self._description = ctypes.create_string_buffer(_EXPERTS.pack(*places, *numbers))
        self.address = ctypes.addressof(self._description)
        """Of the `pw_experts`."""

    def __call__(
        self,
        x: Tensor,
        chosen: Tensor,
        shares: Tensor,
        adapted: Sequence[AdaptedRows] = (),
        products: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """See `kernels.types.Experts`."""
        if x.shape[1] != self.hidden_size or x.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"x: {x.dtype} of width {x.shape[1]} does not fit these experts")
        assert (chosen.dtype, shares.dtype) == (torch.int32, torch.float32)
        x = x.contiguous()
        output = torch.empty_like(x)
        tensors = (x, chosen, shares, output)
        rows = ctypes.create_string_buffer(pack_rows(adapted))
        of_adapters = (ctypes.addressof(rows), len(adapted), *products)
        numbers = (*chosen.shape, TYPES[x.dtype], *of_adapters)
        _mix_experts(_MIXING.pack(self.address, *map(pointer, tensors), *numbers))
        return output


def _addresses(products: Sequence[Linear]) -> ctypes.Array[ctypes.c_void_p]:
    """Of the `pw_linear_weights` of each."""
    return (ctypes.c_void_p * len(products))(*map(packed_address, products))


_route = library.function(
    "pw_route",
    library.text,
    library.address,
    library.integer,
    library.address,
    library.address,
)
_mix_experts = library.function("pw_mix_experts", library.text)
_add_shared = library.function("pw_add_shared", library.text)
