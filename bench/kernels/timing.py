"""Times of device work."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from engine.run import stopwatch

Work = Callable[[], object]

_WARM_UPS = 3


class Stopwatch:
    """Times work by its replays as a CUDA graph, with cold caches, side by side.

    A graph leaves out what a host takes to launch kernels; between replays the L2 cache is written
    over, so that nothing is found there that a step of a model would not find.
    """

    def __init__(self, seconds: float = 0.15) -> None:
        """Spend about `seconds` on each piece of work."""
        self._device = torch.device("cuda")
        size = torch.cuda.get_device_properties(self._device).L2_cache_size
        self._flushed = torch.empty(4 * size, dtype=torch.uint8, device=self._device)
        self._seconds = seconds

    def medians(self, replays: Sequence[Work]) -> list[float]:
        """Median seconds of each that `captured` returned, measured in turns: A B A B."""
        once = sum(self._time(replay) for replay in replays)
        rounds = max(5, min(50, int(self._seconds * len(replays) / max(once, 1e-6))))
        times = [[self._time(replay) for replay in replays] for _ in range(rounds)]
        return [statistics.median(each) for each in zip(*times, strict=True)]

    def _time(self, replay: Work) -> float:
        watch = stopwatch.Stopwatch(self._device)
        self._flushed.zero_()  # takes longer than the host needs to queue the replay
        watch.mark()
        replay()
        watch.mark()
        [seconds] = watch.seconds()
        return seconds


def captured(work: Work) -> Work:
    """The work as one graph, compiled and warm."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
