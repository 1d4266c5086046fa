"""Decode steps, recorded once and replayed: the host says one word where it said hundreds.

A CUDA graph repeats what was recorded, on the same memory. So batches are brought into one of few
shapes (`engine.run.padding`), and copied to where the graph of that shape reads them. A graph is
recorded when its shape is first met, or at start; all graphs share their temporary memory, and the
memory in which they leave their logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from engine.run.batch import Batch
from engine.run.padding import Padder, Shape, tensors_of, with_tensors
from engine.run.staging import Array, num_bytes, refill, views

_log = logging.getLogger(__name__)


class Recording(Protocol):
    """A function that was recorded."""

    def replay(self) -> None:
        """Do it again."""
        ...


Record = Callable[[Callable[[], None]], Recording]
"""Does something, and records it."""


class CudaRecorder:
    """Records CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, action: Callable[[], None]) -> Recording:
        """See `Record`. Raises `RuntimeError` if `action` waits for the device."""
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            action()  # whatever is compiled or allocated on first use must not be recorded
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            action()
        return graph


@dataclass(slots=True)
class _Graph:
    """The graph of one shape, once it is recorded, and the memory that it reads."""

    buffer: Tensor  # [num_bytes] uint8
    batch: Batch
    """Views of the buffer."""
    recording: Recording | None = None


class DecodeGraphs:
    """Computes the logits of decode batches by replaying graphs."""

    def __init__(
        self,
        forward: Callable[[Batch], Tensor],
        padder: Padder,
        device: torch.device,
        record: Record | None = None,
    ) -> None:
        """`forward` returns logits, [num_logit_rows, vocab_size]. It is recorded by `record`, or
        as a CUDA graph.
        """
        self._forward = forward
        self._padder = padder
        self._device = device
        self._record = record or CudaRecorder()
        self._graphs: dict[Shape, _Graph] = {}
        self._logits = torch.empty(0, device=device)  # [most rows, vocab_size], once that is known
        self._can_record = True

    def __len__(self) -> int:
        return len(self._graphs)

    def warm_up(self, seconds: float) -> None:
        """Record the graphs of short sequences; stops when `seconds` have passed."""
        deadline = perf_counter() + seconds
        for shape in self._padder.smallest_shapes():
            if not self._can_record or perf_counter() > deadline:
                return
            self._replay(shape, self._padder.nothing(shape), lambda _: None)

    def replay_smallest(self, num_rows: int = 1) -> None:
        """Compute a decode step of nothing, of so many rows or the next larger number that graphs
        are made for: for measurements, where it is recorded.
        """
        shapes = self._padder.smallest_shapes()
        shape = next((one for one in shapes if one.rows >= num_rows), shapes[-1])
        self._replay(shape, self._padder.nothing(shape), lambda _: None)

    def run(self, batch: Batch, complete: Callable[[Tensor], None]) -> tuple[Batch, Tensor] | None:
        """Compute a batch that lies in the host's memory; `None` if no graph can do that.

        `complete` is given the token ids on the device, to put in those that the host does not
        know. Returns the batch as it is on the device, and the logits of all its rows; the added
        ones come last. Both hold until the next call.
        """
        shape = self._padder.shape_of(batch)
        if shape is None or not (self._can_record or shape in self._graphs):
            return None
        return self._replay(shape, self._padder.pad(batch, shape), complete)

    def _replay(
        self, shape: Shape, padded: Batch, complete: Callable[[Tensor], None]
    ) -> tuple[Batch, Tensor] | None:
        arrays: list[Array] = [tensor.numpy() for tensor in tensors_of(padded)]
        graph = self._graphs.get(shape)
        if graph is None:
            buffer = torch.empty(num_bytes(arrays), dtype=torch.uint8, device=self._device)
            graph = _Graph(buffer, with_tensors(padded, views(buffer, arrays)))
        refill(graph.buffer, arrays)
        complete(graph.batch.token_ids)
        if graph.recording is None:
            graph.recording = self._recorded(shape, graph.batch)
            if graph.recording is None:
                return None
            self._graphs[shape] = graph
        graph.recording.replay()
        return graph.batch, self._logits[: shape.rows]

    def _recorded(self, shape: Shape, batch: Batch) -> Recording | None:
        """What computes `batch` again and again; `None` if that cannot be recorded."""
        start = perf_counter()
        try:
            recording = self._record(lambda: self._compute(batch))
        except RuntimeError:
            # Some models ask the device something in the middle of a pass, and memory may run out:
            # then whatever has not been recorded runs as it is.
            _log.warning("no more decode steps are recorded as CUDA graphs", exc_info=True)
            self._can_record = False
            return None
        _log.info("recorded %s in %.2f s", shape, perf_counter() - start)
        return recording

    def _compute(self, batch: Batch) -> None:
        logits = self._forward(batch)
        if not self._logits.numel():
            self._logits = logits.new_empty(self._padder.buckets[-1], logits.shape[-1])
        self._logits[: len(logits)].copy_(logits)
