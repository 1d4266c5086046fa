"""What a device can do at best: copy and read memory, and multiply matrices."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

from engine.run.stopwatch import Stopwatch

_WARM_UPS = 3
_REPEATS = 20
_GPU_COPY_BYTES = 4 << 30
_CPU_COPY_BYTES = 32 << 20
_READ_BYTES = 512 << 20
"""More than caches hold."""
_GPU_SIZE = 8192
_CPU_SIZE = 512


def copy_rate(device: torch.device) -> float:
    """Bytes a second, each counted when it is read and when it is written."""
    size = _CPU_COPY_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        size = min(_GPU_COPY_BYTES, free // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def read_rate(device: torch.device) -> float:
    """Bytes a second that are read and no more, from memory."""
    source = torch.ones(_READ_BYTES // 4, dtype=torch.float32, device=device)
    return _READ_BYTES / _seconds(source.sum, device)


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large square product of random matrices."""
    size = _GPU_SIZE if device.type == "cuda" else _CPU_SIZE
    one, other = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    product = torch.empty_like(one)
    return 2 * size**3 / _seconds(lambda: torch.mm(one, other, out=product), device)


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """The median of several, once the device is warm."""
    for _ in range(_WARM_UPS):
        action()
    watch = Stopwatch(device)
    watch.mark()
    for _ in range(_REPEATS):
        action()
        watch.mark()
    return median(watch.seconds())
