"""Triton: the experts of a layer, all in one launch a product, whatever a router has chosen.

A token's row is there once for each of its experts. The rows are sorted by expert, on the device,
and cut into blocks of one expert's rows each; a program multiplies one block by a tile of that
expert's weights, so that experts that nobody chose are not read (MegaBlocks, Gale et al. 2023).
Nothing waits for the device, and shapes depend on the number of tokens alone: where a router has
chosen few experts there are fewer blocks than programs, and those that have none end at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.triton.adapters import expert_rows
from kernels.triton.experts.products import add_shared, add_shares, multiply, tile_for
from kernels.triton.experts.routing import route
from kernels.triton.experts.rows import sort_rows
from kernels.triton.layers import gate
from kernels.types import Activation, AdaptedRows, Quantization

__all__ = ["add_shared", "pack_experts", "route"]


def pack_experts(
    gate_up: Sequence[Tensor],
    down: Sequence[Tensor],
    activation: Activation,
    gate_up_biases: Sequence[Tensor] | None,
    down_biases: Sequence[Tensor] | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> _Experts:
    """See `kernels.experts.pack_experts`."""
    del quantization  # which no GPU has
    weights = _stacked(gate_up), _stacked(down)
    biases = (
        None if gate_up_biases is None else _stacked(gate_up_biases),
        None if down_biases is None else _stacked(down_biases),
    )
    return _Experts(weights, biases, activation, batch_invariant)


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    whole = first.new_empty((len(parts), *first.shape))
    for place, part in zip(whole, parts, strict=True):
        place.copy_(part)
    return whole


class _Experts:
    def __init__(
        self,
        weights: tuple[Tensor, Tensor],  # [experts, 2 * inter, hidden], [experts, hidden, inter]
        biases: tuple[Tensor | None, Tensor | None],  # [experts, 2 * inter], [experts, hidden]
        activation: Activation,
        batch_invariant: bool,
    ) -> None:
        self.num_experts = len(weights[0])
        self.nbytes = sum(part.nbytes for part in (*weights, *biases) if part is not None)
        self.uses = weights[0].new_zeros(self.num_experts + 2, dtype=torch.int64)
        self._gate_up, self._down = zip(weights, biases, strict=True)
        self._activation = activation
        self._batch_invariant = batch_invariant

    def __call__(
        self,
        x: Tensor,
        chosen: Tensor,
        shares: Tensor,
        adapted: Sequence[AdaptedRows] = (),
        products: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """See `kernels.types.Experts`.

        With `batch_invariant` a row's result has the same bits whatever other rows there are.
        """
        mean = chosen.numel() / self.num_experts
        tile = tile_for(mean, x.dtype, batch_invariant=self._batch_invariant)
        rows = sort_rows(chosen, self.uses, tile.rows)
        hidden = multiply(x, *self._gate_up, rows, tile, per_token=chosen.shape[1])
        own = expert_rows(adapted, products, rows.order, chosen, self.num_experts)
        if own is not None:
            own.adapt_into(x, hidden, products[0])
        hidden = gate(hidden, self._activation)
        parts = multiply(hidden, *self._down, rows, tile, dtype=torch.float32)
        if own is not None:
            own.adapt_back(hidden, parts, products[1])
        return add_shares(parts, shares, x.dtype)
