"""Recording what the device is told: at start, the largest size first, within bounded memory.

All recordings share one pool of temporary memory, which is as large as the largest of them needs;
and one stream, since libraries keep memory for each stream that they have seen.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, Protocol

import torch

from engine.model.errors import lacks_memory

_SHARE: Final = 1 / 32
"""Of a GPU's memory: what CUDA graphs of either kind may take of it."""

_log = logging.getLogger(__name__)


class Recording(Protocol):
    """A function that was recorded."""

    def replay(self) -> None:
        """Do it again."""
        ...


Record = Callable[[Callable[[], None]], Recording]
"""Does something, and records it."""


class CudaRecorder:
    """Records CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, action: Callable[[], None]) -> Recording:
        """See `Record`. Raises `RuntimeError` if `action` waits for the device."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            action()  # whatever is compiled or allocated on first use must not be recorded
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            action()
        return graph


def record_sizes(
    sizes: Sequence[int],
    record: Callable[[int], None],
    used: Callable[[], int],
    most_bytes: int,
) -> dict[int, int]:
    """Call `record` for `sizes`, the largest first. Returns what each has taken, in bytes.

    `used` tells how many bytes of the device are taken. Where `most_bytes` do not suffice for all
    sizes, fewer are recorded, and the log says so: what lies between them takes the next larger
    one. The first one may take more. Nothing more is recorded where that fails; a size that the
    device lacks memory for is left out.
    """
    costs: dict[int, int] = {}
    left = sorted(sizes, reverse=True)
    while left:
        size = left.pop(0)
        before = used()
        try:
            record(size)
        except RuntimeError as error:
            if not lacks_memory(error):
                # Some models ask the device something in the middle of a pass.
                _log.warning("steps are computed without CUDA graphs", exc_info=True)
                break
            _log.warning("no memory for a CUDA graph of %d", size)
            continue
        costs[size] = max(0, used() - before)
        kept = _affordable(left, list(costs.values()), most_bytes)
        if len(kept) < len(left):
            _log.warning(
                "CUDA graphs may take %d MiB: of %d smaller sizes %d are recorded",
                most_bytes >> 20,
                len(left),
                len(kept),
            )
        left = kept
    return costs


def _affordable(left: list[int], costs: list[int], most_bytes: int) -> list[int]:
    """Of the sizes that are left, as many as there is room for, evenly, with the smallest.

    The first one to be recorded has taken the temporary memory of all.
    """
    room = most_bytes - sum(costs)
    each = max(costs[1:], default=0)
    count = min(len(left), room // max(1, each)) if room > 0 else 0
    return [left[-1 - place * len(left) // count] for place in reversed(range(count))]


class DeviceMemory(Protocol):
    """What a device tells of its memory."""

    total: int
    """Bytes that it has."""

    def used(self) -> int:
        """Bytes that are taken, by whomever, but for what an allocator only keeps at hand."""
        ...

    def peak(self, action: Callable[[], object]) -> int:
        """How many bytes `action` held at once, of those that it allocated."""
        ...


class CudaMemory:
    """Of a GPU, which other processes may use as well."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        _, self.total = torch.cuda.mem_get_info(device)

    def used(self) -> int:
        """See `DeviceMemory`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def peak(self, action: Callable[[], object]) -> int:
        """See `DeviceMemory`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        action()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


class Graphs(ABC):
    """Steps of several sizes, recorded at start."""

    def __init__(
        self,
        device: torch.device,
        wanted: Sequence[int],
        record: Record | None,
        memory: DeviceMemory | None,
    ) -> None:
        """`wanted` sizes are recorded by `record`, or as CUDA graphs; all, or in a share of what
        `memory` there is.
        """
        self.sizes: list[int] = []
        """Those that are recorded, ascending."""
        self._wanted = sorted(wanted, reverse=True)
        self._record = record or CudaRecorder(device)
        self._memory = memory

    @property
    def num_sizes(self) -> int:
        """How many sizes there are to be."""
        return len(self._wanted)

    def record(self, most_sizes: int | None = None) -> dict[int, int]:
        """Record all sizes, or so many of the largest; once, and before any is replayed.

        Returns what each has taken of the device's memory, in bytes.
        """
        start = perf_counter()
        wanted = self._wanted[:most_sizes]
        memory, used, most_bytes = self._memory, lambda: 0, sys.maxsize
        if memory is not None:
            used, most_bytes = memory.used, int(memory.total * _SHARE)
        costs = record_sizes(wanted, self._record_size, used, most_bytes)
        self.sizes = sorted(costs)
        if self.sizes:
            seconds, mib = perf_counter() - start, sum(costs.values()) >> 20
            numbers = (len(self.sizes), self.sizes[-1], seconds, mib)
            _log.info(f"recorded {self._kind} in %.1f s: %d MiB", *numbers)
        return costs

    def _size_for(self, count: int) -> int | None:
        """The smallest recorded size that is not less."""
        place = bisect_left(self.sizes, count)
        return self.sizes[place] if place < len(self.sizes) else None

    @property
    @abstractmethod
    def _kind(self) -> str:
        """What is recorded, with places for the number of sizes and the largest."""

    @abstractmethod
    def _record_size(self, size: int) -> None: ...
