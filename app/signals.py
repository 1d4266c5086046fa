"""SIGTERM and SIGINT from the first moment on: whatever the service is doing, it ends in order.

Nothing here takes long to import: a signal that comes before anybody handles it kills the process,
or is lost where the process is the first of its container.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have the signals handled by `handler`, and then again as they were before."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def leave_on_signals() -> None:
    """Until others handle the signals, they end the process at once, with status 0.

    Only while there is nothing to be undone.
    """
    for number in SIGNALS:
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    # An exception would come up in the middle of some import, where it may be caught.
    os.write(2, b"stopped before it was ready\n")
    os._exit(0)
