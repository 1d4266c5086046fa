"""What low-rank adapters add to products, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.types import AdaptedRows


def adapt(x: Tensor, output: Tensor, adapted: Sequence[AdaptedRows], product: int) -> None:
    """See `kernels.adapters.adapt`."""
    for adapter, rows in adapted:
        for part in adapter.changes[product]:
            columns = output[:, part.column : part.column + part.up.shape[1]]
            taken = x.index_select(0, rows).float() @ part.down.float().T * part.scale
            added = columns.index_select(0, rows).float() + taken @ part.up.float()
            columns.index_copy_(0, rows, added.to(output.dtype))
