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


def upload(
    arrays: Sequence[Array], device: torch.device, into: Tensor | None = None
) -> list[Tensor]:
    """The arrays as tensors on `device`, copied together; nobody may change them later.

    With `into`, a buffer of `num_bytes(arrays)` bytes, that is where they are put, in their order.
    """
    if device.type == "cpu" and into is None:
        return [torch.from_numpy(array) for array in arrays]
    size = num_bytes(arrays)
    staged = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    bytes_of = staged.numpy()
    for array, start in zip(arrays, _starts(arrays), strict=True):
        bytes_of[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).ravel()
    buffer = torch.empty(size, dtype=torch.uint8, device=device) if into is None else into
    buffer.copy_(staged, non_blocking=True)
    return views(buffer, arrays)


def num_bytes(arrays: Sequence[Array]) -> int:
    """Of a buffer that holds all of them."""
    return sum(_padded(array.nbytes) for array in arrays)


def views(buffer: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """Where in `buffer` arrays of these shapes and types are put."""
    return [
        buffer[start : start + array.nbytes]
        .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        .view(array.shape)
        for array, start in zip(arrays, _starts(arrays), strict=True)
    ]


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


def _starts(arrays: Sequence[Array]) -> list[int]:
    starts = [0]
    for array in arrays[:-1]:
        starts.append(starts[-1] + _padded(array.nbytes))
    return starts[: len(arrays)]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
