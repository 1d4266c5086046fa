"""A small cache that knows how old its answers are, and outlives the store behind it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tenants.errors import StoreUnavailable

Key = TypeVar("Key")
Value = TypeVar("Value")


class StaleCache(Generic[Key, Value]):
    """Answers for `fresh_seconds` without asking, and for `stale_seconds` while nobody answers."""

    def __init__(self, fresh_seconds: float, stale_seconds: float, max_entries: int) -> None:
        self._fresh_seconds = fresh_seconds
        self._stale_seconds = stale_seconds
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._generation = 0

    async def get(self, key: Key, load: Callable[[], Awaitable[Value]]) -> Value:
        """The value of `key`, from `load` where it is not known or not fresh.

        Raises `StoreUnavailable` where `load` does and no stale answer is left.
        """
        known = self._entries.get(key)
        now = time.monotonic()
        if known is not None and now - known[0] < self._fresh_seconds:
            return known[1]
        generation = self._generation
        try:
            value = await load()
        except StoreUnavailable:
            if known is not None and now - known[0] < self._stale_seconds:
                return known[1]
            raise
        # A value read before a flush may be what the flush was meant to drop.
        if generation == self._generation:
            self._entries[key] = (time.monotonic(), value)
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        return value

    def drop(self, key: Key) -> None:
        """Forget one answer."""
        self._entries.pop(key, None)

    def expire(self) -> None:
        """Ask again for everything; old answers serve only while nobody answers."""
        self._generation += 1
        long_ago = time.monotonic() - self._fresh_seconds
        for key, (at, value) in self._entries.items():
            self._entries[key] = (min(at, long_ago), value)

    def flush(self) -> None:
        """Forget everything."""
        self._generation += 1
        self._entries.clear()
