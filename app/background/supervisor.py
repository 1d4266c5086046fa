"""Background loops that do not end: one that fails is started again, and readiness tells."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from app.observe.metrics import Metrics

_log = logging.getLogger(__name__)
FIRST_DELAY_SECONDS = 0.5
_LAST_DELAY_SECONDS = 30.0
_REMEMBERED_SECONDS = 60.0
"""How long a failure is told: longer than the longest delay, so that a loop that is down is."""

Loop = Callable[[], Awaitable[None]]


class Supervisor:
    """Keeps loops running that are meant to run until they are cancelled."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failed_at: dict[str, float] = {}

    @property
    def failing(self) -> list[str]:
        """The loops that have failed within the last minute."""
        since = time.monotonic() - _REMEMBERED_SECONDS
        return sorted(name for name, failed_at in self._failed_at.items() if failed_at > since)

    @contextlib.asynccontextmanager
    async def running(self, **loops: Loop) -> AsyncIterator[None]:
        """All `loops` run beside the block, and are cancelled after it."""
        tasks = [asyncio.create_task(self._keep(name, loop)) for name, loop in loops.items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str, loop: Loop) -> None:
        delay = FIRST_DELAY_SECONDS
        while True:
            began = time.monotonic()
            try:
                await loop()
                _log.error("the background loop '%s' has ended; it starts again", name)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                _log.exception("the background loop '%s' gave up; it starts again", name)
            except Exception:  # noqa: BLE001 - what nobody foresaw is what this is for
                _log.exception("the background loop '%s' has failed; it starts again", name)
            self._metrics.loop_failures.labels(name).inc()
            now = self._failed_at[name] = time.monotonic()
            if now - began > _REMEMBERED_SECONDS:
                delay = FIRST_DELAY_SECONDS
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY_SECONDS)
