"""What low-rank adapters add to products, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.types import AdaptedRows


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
