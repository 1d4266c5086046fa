"""Which form the records in Redis have, so that no older Partywall misreads newer ones."""

from __future__ import annotations

from typing import Final

from tenants import redis_keys
from tenants.connection import GuardedRedis
from tenants.errors import StoreUnsupported

SCHEMA: Final = 1
"""Grows with a change that an older version would misread; new fields that it ignores are none."""


async def check_schema(redis: GuardedRedis) -> None:
    """Mark a new store; raises `StoreUnsupported` for one of a newer version."""
    await redis.execute("SET", redis_keys.SCHEMA, SCHEMA, "NX")
    found = int(await redis.execute("GET", redis_keys.SCHEMA) or SCHEMA)
    if found > SCHEMA:
        raise StoreUnsupported(
            f"the store's records are of version {found}, this Partywall knows version {SCHEMA}: "
            "update it, or restore a backup from before"
        )
