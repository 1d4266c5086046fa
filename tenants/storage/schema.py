"""Which form the records in Redis have, so that no Partywall misreads another's."""

from __future__ import annotations

from typing import Final

from tenants import redis_keys
from tenants.errors import StoreUnsupported
from tenants.storage.connection import GuardedRedis

SCHEMA: Final = 2
"""Grows with a change that an older version would misread; new fields that it ignores are none.

1: tenants, groups and lists of API keys were in clear, but for their secrets. 2: they are sealed.
"""
_UNMARKED: Final = 1


async def check_schema(redis: GuardedRedis, *, accepts_older: bool = False) -> None:
    """Mark a new store; raises `StoreUnsupported` for one of a newer version, or of an older one.

    What this says helps an operator, and protects nothing: who writes to Redis can change it.
    """
    version = await found(redis)
    if version is None:
        await mark(redis)
        return
    wrong = complaint(version)
    if wrong is not None and not (accepts_older and version < SCHEMA):
        raise StoreUnsupported(wrong)


def complaint(version: int) -> str | None:
    """What is wrong with records of a version, if anything, and behind a semicolon what to do."""
    if version > SCHEMA:
        return (
            f"the store's records are of version {version}, this Partywall knows version {SCHEMA}; "
            "update it, or restore a backup from before"
        )
    if version < SCHEMA:
        return (
            f"the store's records are of version {version}, in which not all were sealed; if an "
            "earlier Partywall wrote them, stop all services and run `partywall store seal` once, "
            "with this store's options"
        )
    return None


async def mark(redis: GuardedRedis) -> None:
    """Have a store say that its records are of this version."""
    await redis.execute("SET", redis_keys.SCHEMA, SCHEMA)


async def found(redis: GuardedRedis) -> int | None:
    """The version of a store's records; `None` of one that is empty and not marked."""
    lists = (redis_keys.TENANTS, redis_keys.GROUPS, redis_keys.OPERATOR_TOKENS)
    marked, *there = await redis.pipeline(
        ("GET", redis_keys.SCHEMA), *(("EXISTS", one) for one in lists)
    )
    if marked is None:
        return _UNMARKED if any(there) else None
    return int(marked) if marked.isdigit() else _UNMARKED
