"""Local copies of what the store holds: read through, of bounded age, number and staleness."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from tenants.errors import StoreUnavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ReadThroughCache(Generic[K, V]):
    """Answers from memory for `fresh_seconds`; for `stale_seconds` while the store is down.

    Those who ask for one key at once are answered by one look-up.

    What was found and what was not are kept apart, each up to `max_entries`: asking for things
    that do not exist must not drive out those that do, which are what an outage is survived with.
    """

    def __init__(
        self,
        fresh_seconds: float,
        stale_seconds: float,
        *,
        keep_missing: bool,
        max_entries: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fresh_seconds = fresh_seconds
        self._stale_seconds = stale_seconds
        self._max_entries = max_entries
        self._keep_missing = keep_missing
        self._clock = clock
        # Each value with the time it was loaded at; the longest unloaded first.
        self._found: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._missing: OrderedDict[K, tuple[float, None]] = OrderedDict()
        # Copies from before this time are not fresh, however young.
        self._trusted_since = float("-inf")
        self._drops = 0
        # By key and number of drops before it: the look-up under way.
        self._loading: dict[tuple[K, int], asyncio.Task[V | None]] = {}

    async def get(self, key: K, load: Callable[[], Awaitable[V | None]]) -> V | None:
        """The value of `key`, by `load` unless a fresh copy is here.

        Raises what `load` raises, but for `StoreUnavailable` while a copy is not too stale.
        """
        now = self._clock()
        entry = self._entry(key)
        if entry is not None and self._is_fresh(entry[0], now):
            return entry[1]
        try:
            return await self._load(key, load)
        except StoreUnavailable:
            # Looked up again: a notice may have dropped it meanwhile.
            entry = self._entry(key)
            if entry is not None and now - entry[0] < self._stale_seconds:
                return entry[1]
            raise

    async def _load(self, key: K, load: Callable[[], Awaitable[V | None]]) -> V | None:
        """What one look-up under way finds, which nobody who leaves ends for the others."""
        # What was asked for before a change is not for who asks after it.
        ask = key, self._drops
        task = self._loading.get(ask)
        if task is None:
            task = asyncio.create_task(self._loaded(key, load, self._drops))
            self._loading[ask] = task
            task.add_done_callback(lambda done: self._forget_load(ask, done))
        return await asyncio.shield(task)

    async def _loaded(
        self, key: K, load: Callable[[], Awaitable[V | None]], drops: int
    ) -> V | None:
        now = self._clock()
        value = await load()
        # A value read before a change may arrive after the notice of it: use it, do not keep it.
        if drops == self._drops:
            self._keep(key, value, now)
        return value

    def _forget_load(self, ask: tuple[K, int], done: asyncio.Task[V | None]) -> None:
        del self._loading[ask]
        if not done.cancelled():
            done.exception()  # all who asked may have left: then nobody else looks at it

    def drop_if(self, doomed: Callable[[K, V | None], bool]) -> None:
        """Forget the copies that `doomed(key, value)` picks; a missing one's value is `None`."""
        self._drops += 1
        for key in [key for key, (_, value) in self._found.items() if doomed(key, value)]:
            del self._found[key]
        for key in [key for key in self._missing if doomed(key, None)]:
            del self._missing[key]

    def expire(self) -> None:
        """Look at everything again before using it; copies still serve while the store is down."""
        self._drops += 1
        self._trusted_since = self._clock()

    def _is_fresh(self, loaded_at: float, now: float) -> bool:
        return loaded_at > self._trusted_since and now - loaded_at < self._fresh_seconds

    def _entry(self, key: K) -> tuple[float, V | None] | None:
        return self._found.get(key) or self._missing.get(key)

    def _keep(self, key: K, value: V | None, now: float) -> None:
        self._found.pop(key, None)
        self._missing.pop(key, None)
        if value is not None:
            self._found[key] = (now, value)
            _trim(self._found, self._max_entries)
        elif self._keep_missing:
            self._missing[key] = (now, None)
            _trim(self._missing, self._max_entries)


def _trim(entries: OrderedDict[K, V], max_entries: int) -> None:
    while len(entries) > max_entries:
        entries.popitem(last=False)
