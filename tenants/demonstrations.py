"""Which demonstration is under way: one at a time, of all processes that share a store.

What it will make is written down first, so that somebody else can remove it if its process dies.
"""

from __future__ import annotations

import msgspec

from tenants import redis_keys
from tenants.storage.connection import GuardedRedis


class Demonstrated(msgspec.Struct, frozen=True, kw_only=True):
    """A demonstration: who asked for it, the ids of its tenants, and its times (Unix).

    Between `ends_at` and the removal of its tenants it is still under way.
    """

    by: str
    tenants: list[str]
    began_at: float
    ends_at: float


class Demonstrations:
    """The one that is under way, if any. All methods raise `StoreUnavailable`."""

    def __init__(self, redis: GuardedRedis) -> None:
        self._redis = redis

    async def begin(self, one: Demonstrated) -> bool:
        """Whether it may begin: no other one is under way."""
        blob = msgspec.json.encode(one)
        return bool(await self._redis.execute("SET", redis_keys.DEMONSTRATION, blob, "NX"))

    async def current(self) -> Demonstrated | None:
        """What is under way, in whatever process."""
        blob = await self._redis.execute("GET", redis_keys.DEMONSTRATION)
        return None if blob is None else msgspec.json.decode(blob, type=Demonstrated)

    async def end(self, one: Demonstrated) -> None:
        """Nothing is left of it; harmless when repeated."""
        if await self.current() == one:
            await self._redis.execute("DEL", redis_keys.DEMONSTRATION)
