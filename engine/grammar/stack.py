"""Work that may recurse deeply in native code.

`llguidance` recurses once for each rule that leads to another, without a bound of its own: on a
usual stack a grammar of some ten kilobytes would end the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_STACK_BYTES: Final = 256 << 20
"""Addresses, and memory only as far as it is used. A quarter of it was enough for the deepest
grammars of 128 KiB that were found; the door takes half of that."""

_Result = TypeVar("_Result")
_starting = threading.Lock()


def with_deep_stack(work: Callable[[], _Result]) -> _Result:
    """What `work` returns or raises, done in a thread of its own; waits for it."""
    with ThreadPoolExecutor(1, thread_name_prefix="grammar-compile") as pool:
        with _starting:  # the size is the process's: no other may set it back in between
            usual = threading.stack_size(_STACK_BYTES)
            try:
                future = pool.submit(work)  # starts the thread
            finally:
                threading.stack_size(usual)
        return future.result()
