"""Long work in slices of bounded time, one thread at a time: either it goes on, or who lets it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Generic, TypeVar

T = TypeVar("T")


class Slices(Generic[T]):
    """Work in a thread of its own, that computes only while `run` waits for it.

    The work calls `pause` wherever it may be interrupted: a slice ends at the first such place
    behind its time.
    """

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._until = 0.0
        self._work: Callable[[], T] | None = None
        self._result: T | BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], T]) -> None:
        """Take work, which `run` does: one at a time."""
        assert self._work is None, "there is work"
        self._work = work
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="slices", daemon=True)
            self._thread.start()

    def run(self, seconds: float) -> bool:
        """Go on with the work for about so long; returns whether it is done: see `take`."""
        self._until = perf_counter() + seconds
        self._go.release()
        self._back.acquire()
        return self._work is None

    def take(self) -> T:
        """What work that is done has given. Raises what it has raised."""
        result, self._result = self._result, None
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[return-value]

    def pause(self) -> None:
        """For the work to call: returns when it may go on."""
        if threading.current_thread() is self._thread and perf_counter() > self._until:
            self._back.release()
            self._go.acquire()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            assert self._work is not None
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001 - it is raised where it is taken
                self._result = error
            self._work = None
            self._back.release()
