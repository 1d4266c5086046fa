"""The way to Redis: short timeouts, no retries, and a circuit that opens when it is down."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenants.errors import StoreMisconfigured, StoreUnavailable

_TIMEOUT_SECONDS = 0.5
_CONNECTIONS = 32
_CIRCUIT_OPEN_SECONDS = 1.0
_OLDEST = {"redis": 7, "valkey": 8}
_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)


class StoreConnection:
    """A pool of connections to one Redis or Valkey.

    After a failure every call fails at once for a second: a stalled server must not hold each
    request for a timeout of its own.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._open_until = 0.0

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Redis]:
        """The client, for a few commands. Raises `StoreUnavailable` where the server is gone."""
        if time.monotonic() < self._open_until:
            raise StoreUnavailable("the tenant store did not answer a moment ago")
        try:
            yield self._redis
        except _UNREACHABLE as error:
            self._open_until = time.monotonic() + _CIRCUIT_OPEN_SECONDS
            raise StoreUnavailable(f"the tenant store does not answer: {error}") from error

    async def ping(self) -> None:
        """Raise `StoreUnavailable` unless the server answers."""
        async with self.use() as redis:
            await redis.ping()

    async def close(self) -> None:
        """Close every connection."""
        await self._redis.aclose()


async def open_connection(url: str) -> StoreConnection:
    """Connect to `redis://`, `rediss://` or `unix://`.

    Raises `StoreUnavailable` if nobody answers and `StoreMisconfigured` for a URL that is none, or
    for a server older than Redis 7 or Valkey 8.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise StoreMisconfigured(f"redis_url: {error}") from error
    connection = StoreConnection(Redis.from_pool(pool))
    try:
        async with connection.use() as redis:
            _check_version(await redis.info("server"))
    except RedisError as error:
        await connection.close()
        raise StoreMisconfigured(f"redis_url: {error}") from error
    except BaseException:
        await connection.close()
        raise
    return connection


def _check_version(info: dict[str, str]) -> None:
    name = "valkey" if "valkey_version" in info else "redis"
    version = str(info[f"{name}_version"])
    if int(version.split(".")[0]) < _OLDEST[name]:
        raise StoreMisconfigured(f"{name} {version} is too old: Redis 7 or Valkey 8 is needed")
