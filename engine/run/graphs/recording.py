"""Recording what the device is told: at start, the largest size first, within bounded memory.

All recordings share one pool of temporary memory, which is as large as the largest of them needs;
and one stream, since libraries keep memory for each stream that they have seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.model.errors import lacks_memory

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
