"""Decode steps, recorded at start and replayed.

A CUDA graph repeats what was recorded, on the same memory. So batches are brought to one of few
numbers of rows (`engine.run.graphs.padding`), and copied to where the graph of that number reads
them; lengths, block tables and groups are read from there by the kernels. All graphs share their
temporary memory, and the memory in which they leave their logits. None is recorded while serving.

The memory that they read is there once, for the largest batch; those of other numbers of rows lie
in the same bytes. A step copies what its batch has, in one piece: block tables come without the
columns that none of its sequences has reached, and the device spreads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.batch.batch import Batch
from engine.batch.staging import Array, num_bytes, refill, views
from engine.model.self_check import sample
from engine.run.graphs.padding import Padder, tensors_of, with_tensors
from engine.run.graphs.recording import DeviceMemory, Graphs, Record, Recording


class GraphInputs:
    """Batches of every number of rows, of which one holds at a time."""

    def __init__(self, padder: Padder, device: torch.device) -> None:
        rows, width = padder.buckets[-1], padder.width
        self._padder = padder
        largest = padder.nothing(rows)
        self._tables = [
            torch.zeros(*tables.shape[:-1], width, dtype=torch.int32, device=device)
            for tables in _tables(largest)
        ]
        whole: list[Array] = [np.empty(tables.shape, np.int32) for tables in self._tables]
        size = num_bytes(_small_arrays(largest) + whole)
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=device)

    def batch(self, rows: int) -> Batch:
        """The batch of so many rows, on the device: what `fill` last put there."""
        padded = self._padder.nothing(rows)
        arrays = _small_arrays(padded)
        small = iter(views(self._buffer[: num_bytes(arrays)], arrays))
        tables = iter(tables[..., :rows, :] for tables in self._tables)
        own = _tables(padded)
        tensors = [next(tables if _is_in(tensor, own) else small) for tensor in tensors_of(padded)]
        return with_tensors(padded, tensors)

    def fill(self, padded: Batch) -> None:
        """Put a padded batch there, once the device has done what came before."""
        arrays = _small_arrays(padded)
        count = len(arrays)
        arrays += [tables.numpy() for tables in _tables(padded)]
        buffer = self._buffer[: num_bytes(arrays)]
        refill(buffer, arrays)
        for tables, packed in zip(self._tables, views(buffer, arrays)[count:], strict=True):
            rows, width = packed.shape[-2:]
            tables[..., :rows, :width].copy_(packed)


def _tables(padded: Batch) -> list[Tensor]:
    """The block tables."""
    first = padded.attention.block_tables
    return [first] if padded.more is None else [first, padded.more.block_tables]


def _small_arrays(padded: Batch) -> list[Array]:
    """All but the block tables."""
    own = _tables(padded)
    return [tensor.numpy() for tensor in tensors_of(padded) if not _is_in(tensor, own)]


def _is_in(tensor: Tensor, tensors: list[Tensor]) -> bool:
    return any(tensor is one for one in tensors)


@dataclass(frozen=True, slots=True)
class _Graph:
    """What computes batches of one number of rows."""

    batch: Batch
    """Where it reads them."""
    recording: Recording


class DecodeGraphs(Graphs):
    """Computes the logits of decode batches by replaying graphs, each of a number of rows."""

    _kind = "decode steps of %d sizes up to %d rows"

    def __init__(
        self,
        forward: Callable[[Batch], Tensor],
        padder: Padder,
        device: torch.device,
        record: Record | None = None,
        memory: DeviceMemory | None = None,
    ) -> None:
        """`forward` returns logits, [num_logit_rows, vocab_size]; of the others see `Graphs`."""
        super().__init__(device, padder.buckets, record, memory)
        self._forward = forward
        self._padder = padder
        self._inputs = GraphInputs(padder, device)
        self._graphs: dict[int, _Graph] = {}
        self._logits = torch.empty(0, device=device)  # [most rows, vocab_size], once that is known

    def __len__(self) -> int:
        return len(self._graphs)

    def replay_smallest(self, num_rows: int = 1) -> None:
        """Compute a decode step of nothing, of so many rows or the next larger number that is
        recorded, or of the largest one: for measurements, with at least one graph. Tokens are
        different ones, which read experts of their own.
        """
        rows = self._size_for(num_rows) or self.sizes[-1]
        tokens = torch.tensor(sample(self._logits.shape[1], rows))
        nothing = replace(self._padder.nothing(rows), token_ids=tokens)
        self._replay(rows, nothing, lambda _: None)

    def run(self, batch: Batch, complete: Callable[[Tensor], None]) -> tuple[Batch, Tensor] | None:
        """Compute a batch that lies in the host's memory; `None` if no graph can do that.

        `complete` is given the token ids on the device, to put in those that the host does not
        know. Returns the batch as it is on the device, and the logits of all its rows; the added
        ones come last. Both hold until the next call.
        """
        rows = self._size_for(len(batch.attention.context_lens))
        if rows is None or not self._padder.fits(batch):
            return None
        return self._replay(rows, self._padder.pad(batch, rows), complete)

    def _replay(
        self, rows: int, padded: Batch, complete: Callable[[Tensor], None]
    ) -> tuple[Batch, Tensor]:
        graph = self._graphs[rows]
        self._inputs.fill(padded)
        complete(graph.batch.token_ids)
        graph.recording.replay()
        return graph.batch, self._logits[:rows]

    def _record_size(self, rows: int) -> None:
        self._inputs.fill(self._padder.nothing(rows))
        batch = self._inputs.batch(rows)
        self._graphs[rows] = _Graph(batch, self._record(lambda: self._compute(batch)))

    def _compute(self, batch: Batch) -> None:
        logits = self._forward(batch)
        if not self._logits.numel():
            self._logits = logits.new_empty(self._padder.buckets[-1], logits.shape[-1])
        self._logits[: len(logits)].copy_(logits)
