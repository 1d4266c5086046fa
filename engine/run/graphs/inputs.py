"""The memory from which recorded decode steps read their batches, filled anew for each step.

It is there once, for the largest batch; those of other numbers of rows lie in the same bytes. A
step copies what its batch has, in one piece: block tables come without the columns that none of its
sequences has reached, and the device spreads them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch.batch import Batch
from engine.batch.staging import Array, num_bytes, refill, views
from engine.run.graphs.padding import Padder, tensors_of, with_tensors


class GraphInputs:
    """Batches of every number of rows, of which one holds at a time."""

    def __init__(self, padder: Padder, device: torch.device) -> None:
        rows, width = padder.buckets[-1], padder.width
        self._padder = padder
        self._tables = torch.zeros(rows, width, dtype=torch.int32, device=device)
        arrays = _small_arrays(padder.nothing(rows))
        size = num_bytes([*arrays, torch.zeros(rows, width, dtype=torch.int32).numpy()])
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=device)

    def batch(self, rows: int) -> Batch:
        """The batch of so many rows, on the device: what `fill` last put there."""
        padded = self._padder.nothing(rows)
        arrays = _small_arrays(padded)
        left = iter(views(self._buffer[: num_bytes(arrays)], arrays))
        tables = padded.attention.block_tables
        tensors = [
            self._tables[:rows] if tensor is tables else next(left) for tensor in tensors_of(padded)
        ]
        return with_tensors(padded, tensors)

    def fill(self, padded: Batch) -> None:
        """Put a padded batch there, once the device has done what came before."""
        tables = padded.attention.block_tables
        arrays = _small_arrays(padded)
        start = num_bytes(arrays)
        arrays.append(tables.numpy())
        refill(self._buffer[: num_bytes(arrays)], arrays)
        rows, width = tables.shape
        packed = self._buffer[start : start + tables.nbytes].view(torch.int32).view(rows, width)
        self._tables[:rows, :width].copy_(packed)


def _small_arrays(padded: Batch) -> list[Array]:
    """All but the block tables."""
    tables: Tensor = padded.attention.block_tables
    return [tensor.numpy() for tensor in tensors_of(padded) if tensor is not tables]
