"""What low-rank adapters add to products, in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.types import AdaptedRows, Adapter, LowRank


def placed(adapted: Sequence[AdaptedRows], device: torch.device) -> tuple[AdaptedRows, ...]:
    """See `kernels.adapters.placed`."""
    return tuple(AdaptedRows(adapter, rows.to(device)) for adapter, rows in adapted)


def adapt(x: Tensor, output: Tensor, adapted: Sequence[AdaptedRows], product: int) -> None:
    """See `kernels.adapters.adapt`."""
    for adapter, rows in adapted:
        for part in adapter.changes[product]:
            columns = output[:, part.column : part.column + part.up.shape[1]]
            taken = x.index_select(0, rows).float() @ part.down.float().T * part.scale
            added = columns.index_select(0, rows).float() + taken @ part.up.float()
            columns.index_copy_(0, rows, added.to(output.dtype))


def adapt_expert(
    x: Tensor,
    output: Tensor,
    adapted: Sequence[AdaptedRows],
    product: int,
    expert: int,
    tokens: Tensor,
) -> None:
    """Add to a product of an expert what adapters change in it; its rows are of these `tokens`."""
    for adapter, rows in adapted:
        own = tuple(_of_expert(adapter.changes[product], expert))
        places = torch.isin(tokens, rows).nonzero().squeeze(1)
        adapt(x, output, [AdaptedRows(Adapter((own,)), places)], 0)


def _of_expert(change: Sequence[LowRank], expert: int) -> Iterator[LowRank]:
    for part in change:
        if part.experts is not None and expert in part.experts:
            each = len(part.down) // len(part.experts)
            first = part.experts.index(expert) * each
            own = slice(first, first + each)
            yield LowRank(part.down[own], part.up[own], part.column, part.scale)
