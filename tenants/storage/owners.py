"""What tenants and share groups have in common: they are listed by id, and own a slot of Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenants import redis_keys
from tenants.errors import GroupNotFound, InvalidField, StoreError, TenantNotFound
from tenants.records import is_id
from tenants.storage.connection import GuardedRedis

T = TypeVar("T")
_SCAN_COUNT = 1000
_UNBOUNDED_PAGE = 1000


def not_found(owner: str) -> StoreError:
    """The error that says that `owner` is not there."""
    if owner.startswith("@"):
        return GroupNotFound(owner.removeprefix("@"))
    return TenantNotFound(owner)


async def list_records(
    redis: GuardedRedis,
    directory: str,
    key_of: Callable[[str], str],
    after: str | None,
    limit: int | None,
    read: Callable[[str, bytes], T | None],
) -> list[T]:
    """What `read` makes of ids and records, those in the sorted set `directory` behind `after`.

    Up to `limit`, not counting what it makes nothing of. Raises `InvalidField` ("after").
    """
    if after is not None and not is_id(after):
        raise InvalidField("after", "no id that this list could hold")
    start: bytes | str = "-" if after is None else f"({after}"
    found: list[T] = []
    while limit is None or len(found) < limit:
        count = _UNBOUNDED_PAGE if limit is None else limit - len(found)
        names = await redis.execute("ZRANGE", directory, start, "+", "BYLEX", "LIMIT", 0, count)
        if not names:
            break
        ids = [one.decode(errors="replace") for one in names]  # what is no id is nobody's
        blobs = await redis.pipeline(*(("GET", key_of(one)) for one in ids))
        # One that was deleted a moment ago leaves a gap, which the next round fills.
        there = ((one, blob) for one, blob in zip(ids, blobs, strict=True) if blob is not None)
        found += [record for one, blob in there if (record := read(one, blob)) is not None]
        start = b"(" + names[-1]
    return found


async def clear_slot(redis: GuardedRedis, owner: str, keep: frozenset[str]) -> None:
    """Remove all that lies in an owner's slot but for `keep`.

    Whatever was there when the owner's `meta` went is seen by one full scan.
    """
    kept = {key.encode() for key in keep}
    async for names in redis.scan(redis_keys.everything_of(owner), _SCAN_COUNT):
        doomed = [name for name in names if name not in kept]
        if doomed:
            await redis.execute("UNLINK", *doomed)
