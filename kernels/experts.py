"""The door to experts: networks of which each token goes through a few, chosen by a router."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import backends
from kernels.backends import Backend
from kernels.types import Activation, Experts, Quantization, Routing
from kernels.weight_format import GroupedWeight


def route(
    logits: Tensor, routing: Routing, *, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Each token's experts, and what each of them counts.

    `logits` are the router's results, float32 [tokens, num_experts]. Returns int32 and float32,
    [tokens, per_token] each. Of experts with the same score the first one is chosen. Sources:
    Shazeer et al., "Outrageously Large Neural Networks", 2017; for sigmoids, corrections and groups
    DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.1.2.

    With `softmax_near_best` experts are chosen one after the other, and each counts what a softmax
    gives it over those not chosen before it whose logits are near its own: that differ from it by
    at most `margin` times their magnitude, or its own if that is greater (SparseMixer-v2, Liu et
    al., "GRIN", 2024).
    """
    room = backends.room("experts", logits.device, backend)
    chosen: tuple[Tensor, Tensor] = room.route(logits, routing)
    return chosen


def pack_experts(
    gate_up: Sequence[Tensor | GroupedWeight],
    down: Sequence[Tensor | GroupedWeight],
    activation: Activation,
    gate_up_biases: Sequence[Tensor] | None = None,
    down_biases: Sequence[Tensor] | None = None,
    *,
    quantization: Quantization = "none",
    batch_invariant: bool = False,
    backend: Backend | None = None,
) -> Experts:
    """The experts of a layer: of each one matrix [2 * inter, hidden_size], gates above what they
    multiply, and one [hidden_size, inter].

    They are read one after the other, and can be dropped; those in groups, for a CPU, stay as they
    are. Raises `ValueError` for a quantization that the device does not have.
    """
    first = gate_up[0]
    like = first.scales if isinstance(first, GroupedWeight) else first
    device = like.device
    if quantization != "none" and device.type != "cpu":
        raise ValueError(f"quantize: {quantization} products are for CPUs")
    computed = device.type != "cpu" or like.dtype in (torch.float32, torch.bfloat16)
    room = backends.room("experts", device, backend if computed else "reference")
    biases = gate_up_biases, down_biases
    packed: Experts = room.pack_experts(
        gate_up, down, activation, *biases, quantization, batch_invariant
    )
    return packed


def add_shared(
    update: Tensor, shared: Tensor, gates: Tensor | None, *, backend: Backend | None = None
) -> None:
    """Add to `update`, in place, what a network beside the experts gives.

    Both are [tokens, hidden_size] of one type, contiguous. `gates` are [tokens, 1] float32: the
    sigmoid of a token's multiplies what is added to it. The sum is rounded once.
    """
    computed = update.is_cuda or update.dtype in (torch.float32, torch.bfloat16)
    room = backends.room("experts", update.device, backend if computed else "reference")
    room.add_shared(update, shared, gates)
