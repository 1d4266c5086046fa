"""The door to a decoder layer's small operations, and to whole layers where they run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from torch import Tensor

from kernels import backends
from kernels.backends import Backend
from kernels.types import Activation, DecoderLayer

if TYPE_CHECKING:
    from kernels.native.decoder import Stack

ADAPTED: Final = ("qkv", "out", "gate_up", "down", "experts_gate_up", "experts_down")
"""A layer's products that adapters may change."""


def product_number(layer: int, product: str) -> int:
    """Of one of a layer's `ADAPTED` products, among those of all layers."""
    return layer * len(ADAPTED) + ADAPTED.index(product)


def add_rms_norm(
    residual: Tensor,
    update: Tensor | None,
    weight: Tensor,
    eps: float,
    bias: Tensor | None = None,
    centres: bool = False,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """Add `update` to the residual stream in place, and return the sum's RMSNorm.

    `residual` and `update` are [num_tokens, dim] in one dtype, and so is the result; `update` may
    be None. `weight` is [dim], float32 or of the residual's dtype (Gemma's 1 + w is folded into it
    by the caller). The norm is computed in float32 from the sum as it is stored. Source: Zhang and
    Sennrich, "Root Mean Square Layer Normalization", 2019.

    With `centres` the mean of each row is taken from it before, and `bias`, if there is one, added
    behind, which is as `weight` is: a layer norm (Ba, Kiros and Hinton, 2016).
    """
    room = backends.room("layers", residual.device, backend)
    normed: Tensor = room.add_rms_norm(residual, update, weight, eps, bias, centres)
    return normed


def rotate_and_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    kv: Tensor,
    slots: Tensor,
    num_heads: int,
    num_kv_heads: int,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """Rotate queries and keys by their positions, and store keys and values in their slots.

    `qkv` is [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values. `cos`
    and `sin` are float32 tables [num_positions, rotary_dim / 2]; `positions` is [num_tokens] int64.
    The first `rotary_dim` dimensions of a head are rotated, dimension i with dimension
    i + rotary_dim / 2 (RoFormer, Su et al., 2021; halves as in GPT-NeoX), the others stay. Where
    weights [head_dim] are given, queries and keys go through an RMSNorm of each head first (Qwen3,
    Gemma3). `kv` and `slots` are as in `kernels.attention.write_kv`. Returns the queries,
    [num_tokens, num_heads, head_dim].
    """
    memory, norms = (kv, slots, num_heads, num_kv_heads), (query_weight, key_weight, eps)
    room = backends.room("layers", qkv.device, backend)
    query: Tensor = room.rotate_and_write(qkv, cos, sin, positions, *memory, *norms)
    return query


def gate(
    gate_up: Tensor,
    activation: Activation,
    is_plain: bool = False,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """The activation of the first half of each row times its second half, computed in float32.

    `gate_up` is [num_tokens, 2 * inter], the result [num_tokens, inter]. With `is_plain` there is
    no second half: `gate_up` is [num_tokens, inter]. `gelu_tanh` is GELU by its tanh approximation,
    `relu2` the square of ReLU, `clamped_swiglu` gpt-oss's: x times the sigmoid of 1.702 x, where x
    is at most 7, and 1 is added to the second half, which is within -7 and 7. Source: Shazeer, "GLU
    Variants Improve Transformer", 2020.
    """
    room = backends.room("layers", gate_up.device, backend)
    gated: Tensor = room.gate(gate_up, activation, is_plain)
    return gated


def stack(layers: Sequence[DecoderLayer], activation: Activation) -> Stack | None:
    """The layers as one call; `None` where their backend has no such call, or not for them."""
    if backends.default(layers[0].options.rotation.cos.device) != "native":
        return None
    from kernels.native import decoder

    return decoder.stack(layers, activation)
