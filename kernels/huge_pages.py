"""Memory in huge pages, where the system has them.

Whoever streams through much of it, or reads from all over it, else waits for the processor to find
where the pages lie; in a virtual machine that takes it two walks through page tables.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from threading import Lock
from typing import Final

import torch
from torch import Tensor

_HUGE_PAGE: Final = 2 << 20
_CHUNK: Final = 16 * _HUGE_PAGE
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE."""
_LINE: Final = 64
"""Of a processor's cache, in bytes."""


def lazy_zeros(num_bytes: int) -> Tensor:
    """uint8 [num_bytes], anonymous pages: they are zero, and take memory only once written."""
    pages = mmap(-1, num_bytes + _HUGE_PAGE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(MADV_HUGEPAGE)
    with torch.inference_mode(False):  # or nobody outside of it could write there
        memory = torch.frombuffer(pages, dtype=torch.uint8)
    start = -memory.data_ptr() % _HUGE_PAGE
    return memory[start : start + num_bytes]


def populate(memory: Tensor) -> None:
    """Have the pages of `memory` ready, as they are: whoever writes there first need not wait.

    A kernel that cannot (before Linux 5.14), or has no memory left, leaves them as they are.
    """
    start = memory.data_ptr() // PAGESIZE * PAGESIZE
    length = memory.data_ptr() + memory.nbytes - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _POPULATE_WRITE)


class Arena:
    """Hands out pieces of huge pages, for what on its own is too small to fill one.

    A chunk of pages is given back once all of its pieces are.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._rest = _nothing()

    def take(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes] of zeros, from the start of a line of the cache on."""
        size = -(-num_bytes // _LINE) * _LINE
        if size >= _CHUNK:
            return lazy_zeros(size)[:num_bytes]
        with self._lock:
            if size > len(self._rest):
                self._rest = lazy_zeros(_CHUNK)
            piece, rest = self._rest[:num_bytes], self._rest[size:]
            # A view keeps all of its chunk, even one of nothing.
            self._rest = rest if len(rest) else _nothing()
        return piece


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)
