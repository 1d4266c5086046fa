"""Times of device work, and what the device itself reaches at best."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]

_WARM_UPS = 3
_COPIED_BYTES = 4 << 30
_PRODUCT = 8192


class Stopwatch:
    """Times work by its replays as a CUDA graph, with cold caches, side by side.

    A graph leaves out what a host takes to launch kernels; between replays the L2 cache is written
    over, so that nothing is found there that a step of a model would not find.
    """

    def __init__(self, seconds: float = 0.15) -> None:
        """Spend about `seconds` on each piece of work."""
        size = torch.cuda.get_device_properties(0).L2_cache_size
        self._flushed = torch.empty(4 * size, dtype=torch.uint8, device="cuda")
        self._seconds = seconds

    def medians(self, works: Sequence[Work]) -> list[float]:
        """Median seconds of each, measured in turns: A B A B."""
        replays = [_captured(work) for work in works]
        once = sum(self._time(replay) for replay in replays)
        rounds = max(5, min(50, int(self._seconds * len(works) / max(once, 1e-6))))
        times = [[self._time(replay) for replay in replays] for _ in range(rounds)]
        return [statistics.median(each) for each in zip(*times, strict=True)]

    def _time(self, replay: Work) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()  # takes longer than the host needs to queue the replay
        start.record()
        replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def copy_bandwidth(stopwatch: Stopwatch) -> float:
    """Bytes a second of a large copy within device memory, read and written."""
    free, _ = torch.cuda.mem_get_info()
    size = min(_COPIED_BYTES, free // 4)
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    [seconds] = stopwatch.medians([lambda: target.copy_(source)])
    return 2 * size / seconds


def matmul_rate(stopwatch: Stopwatch) -> float:
    """Floating-point operations a second of a large bf16 product of random matrices."""
    left, right = (
        torch.randn(_PRODUCT, _PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    product = torch.empty_like(left)
    [seconds] = stopwatch.medians([lambda: torch.mm(left, right, out=product)])
    return 2 * _PRODUCT**3 / seconds


def _captured(work: Work) -> Work:
    """The work as one graph, compiled and warm."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
