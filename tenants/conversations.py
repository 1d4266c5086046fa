"""Stored responses: what a later turn continues from, also after a restart of the service."""

from __future__ import annotations

import re

from tenants import changes, redis_keys
from tenants.connection import GuardedRedis
from tenants.errors import InvalidField
from tenants.records import Change
from tenants.stored_blobs import StoredBlobs

_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Conversations:
    """Blobs by tenant and response id; what is in a blob is the service's business.

    All methods raise `StoreUnavailable` while Redis is down.
    """

    def __init__(self, redis: GuardedRedis, default_bytes: int | None = None) -> None:
        self._redis = redis
        self._blobs = StoredBlobs(redis, default_bytes)

    async def save(
        self,
        tenant_id: str,
        response_id: str,
        blob: bytes,
        ttl_seconds: float,
        max_bytes: int | None = None,
    ) -> None:
        """Keep a blob for `ttl_seconds`, in place of an earlier one; the oldest may have to go.

        Nothing is kept of a tenant that was deleted while it was being answered. `max_bytes` is
        the tenant's own limit of what is kept of it. Raises `InvalidField` ("response_id",
        "ttl_seconds"), `TooLargeToStore`.
        """
        check_response_id(response_id)
        key = redis_keys.response(tenant_id, response_id)
        await self._blobs.save(tenant_id, key, blob, ttl_seconds, max_bytes)

    async def load(self, tenant_id: str, response_id: str) -> bytes | None:
        """The tenant's blob, or `None`: never another tenant's."""
        if not is_response_id(response_id):
            return None
        return await self._blobs.load(redis_keys.response(tenant_id, response_id))

    async def delete(self, tenant_id: str, response_id: str) -> bool:
        """Forget a blob, and have all processes forget it; whether there was one."""
        if not is_response_id(response_id):
            return False
        key = redis_keys.response(tenant_id, response_id)
        found = await self._blobs.take(tenant_id, key) is not None
        notice = Change(kind="forget", tenant_id=tenant_id, name=response_id)
        await self._redis.execute(*changes.publication(notice))
        return found


def is_response_id(response_id: str) -> bool:
    """Whether `response_id` may name a response."""
    return _RESPONSE_ID.fullmatch(response_id) is not None


def check_response_id(response_id: str) -> None:
    """Raises `InvalidField` unless `response_id` may name a response."""
    if not is_response_id(response_id):
        raise InvalidField("response_id", "1 to 128 characters out of A-Z, a-z, 0-9, '_', '-'")
