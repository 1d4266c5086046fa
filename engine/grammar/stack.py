"""Work that may recurse deeply in native code, and take long.

`llguidance` recurses once for each rule that leads to another, without a bound of its own: on a
usual stack a grammar of some ten kilobytes would end the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Final, TypeVar

_STACK_BYTES: Final = 256 << 20
"""Addresses, and memory only as far as it is used. A quarter of it was enough for the deepest
grammars of 128 KiB that were found; the door takes half of that."""

_USUAL_SECONDS: Final = 0.01
_UNUSUAL_NICENESS: Final = 10
"""Of what takes longer, beyond the process's own: where others compute, a tenth of a processor."""

_Result = TypeVar("_Result")
_starting = threading.Lock()


def with_deep_stack(work: Callable[[], _Result]) -> _Result:
    """What `work` returns or raises, done in a thread of its own; waits for it.

    What takes unusually long gives way to other threads, of this process and of others: a step of
    the model lasts as long as its slowest thread.
    """
    future: Future[_Result] = Future()
    thread = threading.Thread(target=_do, args=(work, future), name="grammar-compile")
    with _starting:  # the size is the process's: no other may set it back in between
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    if not wait([future], _USUAL_SECONDS).done:
        _give_way(thread)
    thread.join()
    return future.result()


def _do(work: Callable[[], _Result], future: Future[_Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)


def _give_way(thread: threading.Thread) -> None:
    """On Linux a thread has a priority of its own."""
    if thread.native_id is not None:
        with suppress(OSError):  # it has just ended, or the system knows no such thing
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + _UNUSUAL_NICENESS
            os.setpriority(os.PRIO_PROCESS, thread.native_id, min(niceness, 19))
