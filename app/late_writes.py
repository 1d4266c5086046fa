"""Writes that the store has not taken, made once it does: in order where they have the same key."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from tenants.errors import StoreUnavailable

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.5

Write = Callable[[], Awaitable[None]]
"""It raises `StoreUnavailable` and nothing else, and may be made again though it has happened."""


class _Late(NamedTuple):
    write: Write
    num_bytes: int


class LateWrites:
    """Those of `max_bytes` together wait; more are lost, and the log says so."""

    def __init__(self, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._waiting: dict[Hashable, deque[_Late]] = {}
        self._catching_up = asyncio.Lock()

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    async def make(self, key: Hashable, num_bytes: int, write: Write) -> bool:
        """Write now, behind what waits under the same key, or later; whether it has been made."""
        try:
            await self.catch_up(key)
            await write()
        except StoreUnavailable as error:
            if self._num_bytes + num_bytes > self._max_bytes:
                _log.error("%d bytes are not written, and lost: %s", num_bytes, error)
                return False
            _log.warning("%d bytes are written later: %s", num_bytes, error)
            self._waiting.setdefault(key, deque()).append(_Late(write, num_bytes))
            self._num_bytes += num_bytes
            return False
        return True

    async def catch_up(self, key: Hashable) -> None:
        """Write what waits under a key. Raises `StoreUnavailable`: it waits on."""
        if key not in self._waiting:
            return
        async with self._catching_up:
            waiting = self._waiting.get(key)
            while waiting:
                await waiting[0].write()
                self._num_bytes -= waiting.popleft().num_bytes
            self._waiting.pop(key, None)

    async def run(self) -> None:
        """Write all that waits, again and again until cancelled; at the end once more."""
        try:
            while True:
                await asyncio.sleep(_RETRY_SECONDS)
                await self._catch_up_all()
        finally:
            await self._catch_up_all()

    async def _catch_up_all(self) -> None:
        for key in list(self._waiting):
            try:
                await self.catch_up(key)
            except StoreUnavailable:
                continue
            except Exception:  # noqa: BLE001 - of a bug, or of what others put into the store
                lost = sum(one.num_bytes for one in self._waiting.pop(key, ()))
                self._num_bytes -= lost
                _log.exception("%d bytes cannot be written, and are lost", lost)
