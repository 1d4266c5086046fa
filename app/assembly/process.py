"""The service's own process: what ends it, and how little its memory holds streams up."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator

from app.signals import on_signals

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024
_COLLECTION_THRESHOLDS = (5_000, 10, 20)
"""New objects that are left after which the young are collected, and multiples for the older."""


def spare_collections() -> None:
    """Make full garbage collections short and rare: each one stops all streams.

    What a start has made stays for good, and need not be looked at again (0.1 s each time).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)


def give_back_memory() -> None:
    """Let the system have the memory of large bodies and texts again as soon as they are gone.

    Otherwise glibc raises the size from which it does so to that of the largest body seen, and one
    heap for each thread grows by the bodies of its worst moment.
    """
    with contextlib.suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


@contextlib.contextmanager
def cancelled_by_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM and SIGINT cancel the current task, once: what it then undoes is not cut off.

    Where others have handled them, and it ends for that, the yielded function is to be called.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_ending = False

    def end() -> None:
        nonlocal is_ending
        is_ending = True

    def cancel(*_: object) -> None:
        if not is_ending:
            # A signal handler runs between any two instructions, and wakes no event loop.
            loop.call_soon_threadsafe(task.cancel)
        end()

    with on_signals(cancel):
        yield end
