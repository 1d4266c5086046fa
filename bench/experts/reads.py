"""The bytes that a decode step has to read, whatever computes it."""

from __future__ import annotations

from typing import Final

from bench.experts.shapes import Shape

_WEIGHT_BYTES: Final = {"bf16": 2, "int8": 1}
"""Of a weight; the scales of rows are left out."""
_KV_BYTES: Final = 2
_ROUTER_BYTES: Final = 4


def step_bytes(
    shape: Shape,
    *,
    num_layers: int,
    vocab_size: int,
    weights: str,
    distinct_experts: float,
    kv_tokens: float,
) -> float:
    """Weights of the experts that are used, of attention, routers and head, and the KV cache.

    `distinct_experts` are those of a layer; `kv_tokens` those of all sequences together.
    """
    hidden = shape.hidden_size
    kv_size = hidden // shape.num_heads * shape.num_kv_heads
    attention = 2 * hidden * hidden + 2 * hidden * kv_size
    experts = distinct_experts * 3 * hidden * shape.expert_size
    a_layer = (
        (attention + experts) * _WEIGHT_BYTES[weights]
        + shape.num_experts * hidden * _ROUTER_BYTES
        + kv_tokens * 2 * kv_size * _KV_BYTES
    )
    return num_layers * a_layer + vocab_size * hidden * _WEIGHT_BYTES[weights]
