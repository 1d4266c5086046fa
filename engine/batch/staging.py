"""To the device and back without waiting: one copy a step each way, through pinned memory.

A copy from ordinary memory makes the host wait for everything that the device has still to do.
torch's allocator of pinned memory hands a buffer out again only once the device is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.generic]

_ALIGNMENT = 16
"""Bytes; kernels load vectors of so many."""


def upload(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on `device`, copied together; nobody may change them later."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    buffer = torch.empty(num_bytes(arrays), dtype=torch.uint8, device=device)
    refill(buffer, arrays)
    return views(buffer, arrays)


def num_bytes(arrays: Sequence[Array]) -> int:
    """Of a buffer that holds all of them."""
    return sum(_padded(array.nbytes) for array in arrays)


def refill(buffer: Tensor, arrays: Sequence[Array]) -> None:
    """Copy the arrays to a buffer of `num_bytes(arrays)` bytes, one behind the other."""
    staged = torch.empty(len(buffer), dtype=torch.uint8, pin_memory=buffer.device.type == "cuda")
    staged_bytes = staged.numpy()
    start = 0
    for array in arrays:
        whole = np.ascontiguousarray(array).reshape(-1)
        staged_bytes[start : start + array.nbytes] = whole.view(np.uint8)
        start += _padded(array.nbytes)
    buffer.copy_(staged, non_blocking=True)


def views(buffer: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """Where `refill` puts arrays of these shapes and types."""
    found: list[Tensor] = []
    start = 0
    for array in arrays:
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        found.append(buffer[start : start + array.nbytes].view(kind).view(array.shape))
        start += _padded(array.nbytes)
    return found


@dataclass(frozen=True, slots=True)
class Download:
    """Tensors on their way to the host."""

    _tensors: list[Tensor]
    _arrived: torch.cuda.Event | None

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Download:
        """Begin to copy `tensors`, once the device has computed them."""
        if not tensors or tensors[0].device.type != "cuda":
            return cls(list(tensors), None)
        pinned = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
                tensor, non_blocking=True
            )
            for tensor in tensors
        ]
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return cls(pinned, arrived)

    def wait(self) -> list[Tensor]:
        """The tensors, in the host's memory."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
