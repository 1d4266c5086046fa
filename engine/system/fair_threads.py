"""Threads that work for tenants in turn: who sends much waits for itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

from engine.system.turns import Turns

_Result = TypeVar("_Result")


class FairThreads(Generic[_Result]):
    """Does each tenant's work in the order in which it comes, tenants in turn.

    A tenant keeps one thread busy less than there are, so that others find one free.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = Lock()
        self._turns: Turns[tuple[Future[_Result], Callable[[], _Result]]] = Turns(
            threads, max(1, threads - 1)
        )

    def submit(self, tenant: str, work: Callable[[], _Result]) -> Future[_Result]:
        """What `work` will return or raise; until it begins, it can be cancelled."""
        future: Future[_Result] = Future()
        with self._lock:
            self._turns.add(tenant, (future, work))
            self._begin()
        return future

    def _begin(self) -> None:
        """Start what may start. Whoever calls holds the lock."""
        while (turn := self._turns.take()) is not None:
            tenant, (future, work) = turn
            self._pool.submit(self._run, tenant, future, work)

    def _run(self, tenant: str, future: Future[_Result], work: Callable[[], _Result]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(work())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        with self._lock:
            self._turns.end(tenant)
            self._begin()
