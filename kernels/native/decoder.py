"""The decoder layers of a step by the compiled library, in one call for all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from struct import Struct
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kernels.kv_format import head_size
from kernels.native import library
from kernels.native.adapters import pack_rows
from kernels.native.attention import pack_call
from kernels.native.experts import PackedExperts, pack_routing
from kernels.native.layers import ACTIVATIONS
from kernels.native.library import pointer
from kernels.native.linear import packed_address
from kernels.types import (
    Activation,
    AdaptedRows,
    AttentionBatch,
    DecoderLayer,
    Dense,
    LayerCaches,
    Linear,
    Mixture,
    Norm,
)

_LAYER = Struct("=6q" + 8 * "4qd" + "2q5q2d")
"""`pw_layer` of `decoder.h`, field by field."""

_MIXTURE_END = Struct("=3q")
"""`pw_mixture` behind its routing."""

_STEP = Struct("=6q")
"""`pw_step`."""

_CACHE = Struct("=2q")
"""`pw_cache`."""

_COLUMN = Struct("=2q")
"""`pw_column`."""


def stack(layers: Sequence[DecoderLayer], activation: Activation) -> Stack | None:
    """The layers as one; `None` where not all products are the library's, or attention differs."""
    shapes = {
        (
            layer.options.num_heads,
            layer.options.num_kv_heads,
            *((part.in_features, part.out_features) for part in (layer.qkv, layer.out)),
        )
        for layer in layers
    }
    is_whole = all(map(_is_packed, layers))
    return Stack(layers, activation) if is_whole and len(shapes) == 1 else None


class Stack:
    """Layers whose products are all the library's: see `stack`."""

    def __init__(self, layers: Sequence[DecoderLayer], activation: Activation) -> None:
        self._layers = list(layers)  # their tensors must outlive the addresses
        self._num_heads = layers[0].options.num_heads
        self._mixtures = [_pack_mixture(layer.network) for layer in layers]
        self._packed = b"".join(
            _pack(layer, mixture, ACTIVATIONS[activation])
            for layer, mixture in zip(layers, self._mixtures, strict=True)
        )
        self._caches: WeakKeyDictionary[LayerCaches, bytes] = WeakKeyDictionary()
        text, integer = library.text, library.integer
        self._decode = library.function(
            "pw_decode", text, text, integer, text, text, text, returns=integer
        )

    def run(
        self,
        residual: Tensor,
        positions: Tensor,
        caches: LayerCaches,
        columns: Sequence[AttentionBatch],
        adapted: Sequence[AdaptedRows] = (),
    ) -> Tensor:
        """Take the residual stream [num_tokens, dim] through all layers, and write their KV.

        All updates but the last are added to it, and that one is returned. `positions` is
        [num_tokens] int64, as in `kernels.layers.rotate_and_write`; `columns` are the batch with
        the block tables and slots of each column. The products of `adapted` rows are numbered as
        `kernels.layers.product_number` says. Raises `MemoryError`.
        """
        assert residual.is_contiguous()
        rows = ctypes.create_string_buffer(pack_rows(adapted))
        update, kv, batch = torch.empty_like(residual), caches.views[0], columns[0]
        step = _STEP.pack(
            positions.data_ptr(),
            residual.data_ptr(),
            update.data_ptr(),
            len(residual),
            ctypes.addressof(rows),
            len(adapted),
        )
        head_dim, dtype = head_size(kv), residual.dtype
        strides = (0, 0, self._num_heads * head_dim, head_dim)
        call = pack_call(strides, self._num_heads, dtype, kv, batch, 0.0, None, None)
        pages = b"".join(
            _COLUMN.pack(one.block_tables.data_ptr(), one.slots.data_ptr()) for one in columns
        )
        places, count = self._packed_caches(caches), len(self._layers)
        if self._decode(self._packed, places, count, pages, step, call) != 0:
            raise MemoryError("no memory for what a decoder layer computes on the way")
        return update

    def _packed_caches(self, caches: LayerCaches) -> bytes:
        """A `pw_cache` of each layer."""
        packed = self._caches.get(caches)
        if packed is None:
            assert len({kv.stride() for kv in caches.views}) == 1
            pairs = zip(caches.views, caches.columns, strict=True)
            packed = b"".join(_CACHE.pack(kv.data_ptr(), column) for kv, column in pairs)
            self._caches[caches] = packed
        return packed


def _is_packed(layer: DecoderLayer) -> bool:
    network = layer.network
    if isinstance(network, Mixture) and not isinstance(network.experts, PackedExperts):
        return False
    return None not in map(packed_address, _products(layer))


def _products(layer: DecoderLayer) -> Iterator[Linear]:
    """All but those of experts."""
    yield from (layer.qkv, layer.out)
    network, dense = layer.network, _dense(layer.network)
    if dense is not None:
        yield from (dense.gate_up, dense.down)
    if isinstance(network, Mixture):
        yield network.router
        if network.shared_gate is not None:
            yield network.shared_gate


def _dense(network: Dense | Mixture) -> Dense | None:
    """What all tokens go through."""
    return network if isinstance(network, Dense) else network.shared


def _address(product: Linear | None) -> int:
    return 0 if product is None else packed_address(product) or 0


def _pack_mixture(network: Dense | Mixture) -> ctypes.Array[ctypes.c_char] | None:
    """A `pw_mixture`, in memory of its own."""
    if isinstance(network, Dense):
        return None
    assert isinstance(network.experts, PackedExperts)
    products = map(_address, (network.router, network.shared_gate))
    end = _MIXTURE_END.pack(network.experts.address, *products)
    return ctypes.create_string_buffer(pack_routing(network.routing) + end)


def _pack(
    layer: DecoderLayer, mixture: ctypes.Array[ctypes.c_char] | None, activation: int
) -> bytes:
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
    dense = _dense(layer.network)
    network = (None, None) if dense is None else (dense.gate_up, dense.down)
    return _LAYER.pack(
        *map(_address, (layer.qkv, layer.out, *network)),
        0 if mixture is None else ctypes.addressof(mixture),
        pointer(options.sinks),
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
