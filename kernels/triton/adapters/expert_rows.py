"""Triton: rows that experts are chosen for, by adapter and expert."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.triton.adapters.products import give, take
from kernels.triton.adapters.tables import ROWS, Blocks, PlacedRows, placed
from kernels.types import AdaptedRows


def expert_rows(
    adapted: Sequence[AdaptedRows],
    products: tuple[int, int],
    order: Tensor,
    chosen: Tensor,
    num_experts: int,
) -> ExpertRows | None:
    """See `ExpertRows`; `None` where nothing is changed in these products."""
    if not adapted:
        return None
    rows = adapted if isinstance(adapted, PlacedRows) else placed(adapted, chosen.device)
    is_changed = any(map(rows.num_tiles, products))
    return ExpertRows(rows, order, chosen, num_experts) if is_changed else None


class ExpertRows:
    """What adapters change in a layer's experts, for rows that are sorted by expert.

    They are sorted by adapter on the device: shapes depend on numbers of rows, adapters and experts
    alone.
    """

    def __init__(
        self,
        adapted: PlacedRows,
        order: Tensor,  # int32 [num_rows]: as they are sorted, their numbers in `chosen`
        chosen: Tensor,  # int32 [tokens, experts of a token]
        num_experts: int,
    ) -> None:
        self._adapted = adapted
        rows, num_adapters = adapted.rows, len(adapted)
        tokens = order.long() // chosen.shape[1]
        owners = torch.full((len(chosen),), num_adapters, device=chosen.device)
        owners.index_copy_(0, rows.order, self._adapted.owners)
        group = owners[tokens] * num_experts + chosen.flatten()[order]
        # Rows that have no adapter come last, and are left out.
        own = group.argsort(stable=True)[: len(rows.order) * chosen.shape[1]]
        blocks = self._blocks(group, len(own), num_experts)
        vector = rows.vector
        self._tokens = Blocks(tokens[own], blocks, vector)
        self._sorted = Blocks(own, blocks, vector)
        self._numbers = Blocks(order[own].long(), blocks, vector)

    def _blocks(self, group: Tensor, num_rows: int, num_experts: int) -> Tensor:
        """`Blocks.blocks`, for the rows of each adapter and expert, which are a group."""
        addresses = self._adapted.addresses
        count = len(addresses) * num_experts
        sizes = group.new_zeros(count + num_experts).scatter_add_(0, group, torch.ones_like(group))
        sizes = sizes[:count]
        ends, needed = sizes.cumsum(0), (sizes + ROWS - 1) // ROWS
        behind = needed.cumsum(0)
        block = torch.arange(min(num_rows, count) + num_rows // ROWS, device=group.device)
        own = torch.searchsorted(behind, block, right=True).clamp_max_(count - 1)
        first = (ends - sizes)[own] + (block - (behind - needed)[own]) * ROWS
        end = torch.minimum(first + ROWS, ends[own])
        return torch.stack([addresses[own // num_experts], first, end, own % num_experts])

    def adapt_into(self, x: Tensor, output: Tensor, product: int) -> None:
        """Add to a product of tokens, `x`, whose results are sorted."""
        self._adapt(x, self._tokens, output, self._sorted, product)

    def adapt_back(self, x: Tensor, output: Tensor, product: int) -> None:
        """Add to a product of sorted rows, `x`, whose results, float32, are by their numbers."""
        self._adapt(x, self._sorted, output, self._numbers, product)

    def _adapt(
        self, x: Tensor, inputs: Blocks, output: Tensor, outputs: Blocks, product: int
    ) -> None:
        tiles = self._adapted.num_tiles(product)
        if tiles:
            with torch.cuda.device(x.get_device()):  # Triton launches on the current device
                give(output, take(x, inputs, product, tiles), outputs, product, x)
