"""Threads that work for tenants in turn: who sends much waits for itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class FairThreads(Generic[_Result]):
    """Does each tenant's work in the order in which it comes, tenants in turn.

    A tenant keeps one thread busy less than there are, so that others find one free.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = Lock()
        self._working: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[Future[_Result], Callable[[], _Result]]]] = {}
        """By tenant, the one whose turn it is first."""

    def submit(self, tenant: str, work: Callable[[], _Result]) -> Future[_Result]:
        """What `work` will return or raise; until it begins, it can be cancelled."""
        future: Future[_Result] = Future()
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append((future, work))
            self._begin()
        return future

    def _begin(self) -> None:
        """Start what may start. Whoever calls holds the lock."""
        for tenant in list(self._waiting):
            if self._working.total() >= self._threads:
                return
            if self._working[tenant] < max(1, self._threads - 1):
                queue = self._waiting.pop(tenant)
                self._working[tenant] += 1
                self._pool.submit(self._run, tenant, *queue.popleft())
                if queue:
                    self._waiting[tenant] = queue  # behind the others

    def _run(self, tenant: str, future: Future[_Result], work: Callable[[], _Result]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(work())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        with self._lock:
            self._working -= Counter((tenant,))
            self._begin()
