"""Times the parts of a step, on the CPU or in a GPU's stream."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import torch


class Stopwatch:
    """Marks moments; tells afterwards how long it was between them."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._moments: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Mark this moment; on a GPU the one when it gets here."""
        if self._on_gpu:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record()
        else:
            self._moments.append(perf_counter())

    @property
    def is_done(self) -> bool:
        """Whether a GPU has reached the last moment."""
        if not self._on_gpu:
            return True
        done: bool = self._events[-1].query()  # type: ignore[no-untyped-call]
        return done

    def seconds(self) -> list[float]:
        """The times between the moments. Waits until a GPU has reached the last one."""
        if not self._on_gpu:
            return [end - start for start, end in pairwise(self._moments)]
        self._events[-1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._events)]
