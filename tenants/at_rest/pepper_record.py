"""Which peppers a store uses: their fingerprints, so that none is missing where a process starts.

The first is the one that the store is at; the others are still in use, from before or for later.
"""

from __future__ import annotations

from collections.abc import Callable

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.errors import PepperMismatch
from tenants.storage.commits import commit_if, holds
from tenants.storage.connection import GuardedRedis
from tenants.writes.writes import until_committed

_FINGERPRINT_BYTES = 32


async def in_use(redis: GuardedRedis) -> list[bytes]:
    """The fingerprints. Raises `StoreUnavailable`."""
    return split(await redis.execute("GET", redis_keys.PEPPER))


async def join(redis: GuardedRedis, peppers: Peppers) -> None:
    """Have the store use our current pepper, too. Raises `PepperMismatch`, `StoreUnavailable`."""

    def joined(used: list[bytes]) -> list[bytes]:
        newest = peppers.fingerprints[0]
        return used if newest in used else [*used, newest]

    await _change(redis, peppers, joined)


async def lead(redis: GuardedRedis, peppers: Peppers) -> None:
    """Have the store be at our current pepper. Raises what `join` raises."""

    def led(used: list[bytes]) -> list[bytes]:
        newest = peppers.fingerprints[0]
        return [newest, *(one for one in used if one != newest)]

    await _change(redis, peppers, led)


async def settle(redis: GuardedRedis, peppers: Peppers) -> None:
    """Have the store use our current pepper alone. Raises what `join` raises."""
    await _change(redis, peppers, lambda _: peppers.fingerprints[:1])


async def _change(
    redis: GuardedRedis, peppers: Peppers, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    async def attempt() -> bool:
        stored = await redis.execute("GET", redis_keys.PEPPER)
        used = split(stored)
        if not set(used) <= set(peppers.fingerprints):
            raise PepperMismatch
        changed = change(used)
        if changed == used:
            return True
        commands = [("SET", redis_keys.PEPPER, b"".join(changed))]
        return await commit_if(redis, [holds(redis_keys.PEPPER, stored)], commands)

    await until_committed(attempt)


def split(stored: bytes | None) -> list[bytes]:
    """The fingerprints in a record."""
    stored = stored or b""
    starts = range(0, len(stored), _FINGERPRINT_BYTES)
    return [stored[start : start + _FINGERPRINT_BYTES] for start in starts]
