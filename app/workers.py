"""Threads for what would hold up the event loop: a few at a time, tenants in turn."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Workers:
    """Does work in the order in which it comes, each tenant's after the others' that wait.

    A tenant keeps one thread busy less than there are, so that others find one free.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or max(2, min(4, (os.cpu_count() or 1) // 2))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="worker")
        self._working: Counter[str] = Counter()
        # By tenant, the one whose turn it is first: the starts of what waits.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, tenant: str, work: Callable[[], Result]) -> Result:
        """What `work` returns or raises. What has begun goes on, though nobody wait any more."""
        await self._turn(tenant)
        try:
            done = asyncio.get_running_loop().run_in_executor(self._pool, work)
        except BaseException:
            self._end(tenant)
            raise
        done.add_done_callback(lambda _: self._end(tenant))
        try:
            return await asyncio.shield(done)
        finally:
            # An error holds this frame, and the work's: no circle may keep what was worked on.
            del done, work

    def close(self) -> None:
        """Take no more work; what waits is never done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, tenant: str) -> None:
        """Wait for a thread."""
        if self._may_begin(tenant):
            self._working[tenant] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(tenant)
            raise

    def _may_begin(self, tenant: str) -> bool:
        most = max(1, self._threads - 1)
        return self._working.total() < self._threads and self._working[tenant] < most

    def _end(self, tenant: str) -> None:
        """Pass a thread on."""
        self._working[tenant] -= 1
        if not self._working[tenant]:
            del self._working[tenant]
        for waiting in list(self._waiting):
            if self._may_begin(waiting):
                self._begin_next(waiting)

    def _begin_next(self, tenant: str) -> None:
        """Let a tenant's oldest work begin that is still wanted; the rest waits behind others'."""
        queue = self._waiting.pop(tenant)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                self._working[tenant] += 1
                turn.set_result(None)
                break
        if queue:
            self._waiting[tenant] = queue
