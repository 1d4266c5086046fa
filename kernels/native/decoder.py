"""The decoder layers of a step by the compiled library, in one call for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import torch
from torch import Tensor

from kernels.kv_format import head_size
from kernels.native import library
from kernels.native.attention import pack_call
from kernels.native.layers import ACTIVATIONS
from kernels.native.linear import packed_address
from kernels.types import Activation, AttentionBatch, DecoderLayer, Linear, Norm

_LAYER = Struct("=4q" + 8 * "4qd" + "2q5q2d")
"""`pw_layer` of `decoder.h`, field by field."""

_STEP = Struct("=4q2q")
"""`pw_step`."""


def stack(layers: Sequence[DecoderLayer], activation: Activation) -> Stack | None:
    """The layers as one; `None` where not all products are the library's, and of one shape."""
    shapes = {
        (
            layer.options.num_heads,
            *((part.in_features, part.out_features) for part in _products(layer)),
        )
        for layer in layers
    }
    addresses = [packed_address(part) for layer in layers for part in _products(layer)]
    return None if len(shapes) > 1 or None in addresses else Stack(layers, activation)


class Stack:
    """Layers whose products are all the library's, and of one shape: see `stack`."""

    def __init__(self, layers: Sequence[DecoderLayer], activation: Activation) -> None:
        self._layers = list(layers)  # their tensors must outlive the addresses
        self._num_heads = layers[0].options.num_heads
        self._packed = b"".join(_pack(layer, ACTIVATIONS[activation]) for layer in layers)
        arguments = (library.text, library.integer, library.text, library.text)
        self._decode = library.function("pw_decode", *arguments, returns=library.integer)

    def run(
        self, residual: Tensor, positions: Tensor, memory: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """Take the residual stream [num_tokens, dim] through all layers, and write their KV.

        All updates but the last are added to it, and that one is returned. `positions` is
        [num_tokens] int64, `memory` [num_blocks, num_layers, 2, num_kv_heads, block_size,
        head_dim], both as in `kernels.layers.rotate_and_write`. Raises `MemoryError`.
        """
        assert residual.is_contiguous()
        update = torch.empty_like(residual)
        step = _STEP.pack(
            positions.data_ptr(),
            batch.slots.data_ptr(),
            residual.data_ptr(),
            update.data_ptr(),
            len(residual),
            memory.stride(1),
        )
        head_dim, dtype = head_size(memory), residual.dtype
        places = (0, 0, self._num_heads * head_dim, head_dim)
        call = pack_call(places, self._num_heads, dtype, memory[:, 0], batch, 0.0, None, None)
        if self._decode(self._packed, len(self._layers), step, call) != 0:
            raise MemoryError("no memory for what a decoder layer computes on the way")
        return update


def _products(layer: DecoderLayer) -> tuple[Linear, Linear, Linear, Linear]:
    return layer.qkv, layer.out, layer.gate_up, layer.down


def _pack(layer: DecoderLayer, activation: int) -> bytes:
    options = layer.options
    norms = (
        options.before_attention,
        options.after_attention,
        options.before_mlp,
        options.after_mlp,
        options.query_norm,
        options.key_norm,
        *(options.joint_norms or (None, None)),
    )
    cos, sin = options.rotation.cos, options.rotation.sin
    return _LAYER.pack(
        *(packed_address(product) for product in _products(layer)),
        *(field for norm in norms for field in _norm_fields(norm)),
        cos.data_ptr(),
        sin.data_ptr(),
        cos.shape[1],
        options.sliding_window or 0,
        activation,
        options.is_parallel,
        options.is_plain,
        options.scale,
        options.softcap or 0.0,
    )


def _norm_fields(norm: Norm | None) -> tuple[int, int, int, int, float]:
    if norm is None:
        return 0, 0, 0, 0, 0.0
    bias = 0 if norm.bias is None else norm.bias.data_ptr()
    is_wide = norm.weight.dtype == torch.float32
    return norm.weight.data_ptr(), bias, is_wide, norm.centres, norm.eps
