"""Stored responses: what a later turn continues from, also after a restart of the service."""

from __future__ import annotations

import re

from tenants import keyspace
from tenants.connection import GuardedRedis, Script
from tenants.errors import InvalidField

_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

# KEYS: meta, the blob's. ARGV: the blob, milliseconds to keep it.
_SAVE = Script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 1
""")


class Conversations:
    """Blobs by tenant and response id; what is in a blob is the service's business.

    All methods raise `StoreUnavailable` while Redis is down.
    """

    def __init__(self, redis: GuardedRedis) -> None:
        self._redis = redis

    async def save(self, tenant_id: str, response_id: str, blob: bytes, ttl_seconds: float) -> None:
        """Keep a blob for `ttl_seconds`, in place of an earlier one.

        Nothing is kept of a tenant that was deleted while it was being answered. Raises
        `InvalidField` ("response_id", "ttl_seconds").
        """
        check_response_id(response_id)
        key = keyspace.response(tenant_id, response_id)
        await save_blob(self._redis, tenant_id, key, blob, ttl_seconds)

    async def load(self, tenant_id: str, response_id: str) -> bytes | None:
        """The tenant's blob, or `None`: never another tenant's."""
        if not is_response_id(response_id):
            return None
        blob: bytes | None = await self._redis.execute(
            "GET", keyspace.response(tenant_id, response_id)
        )
        return blob

    async def delete(self, tenant_id: str, response_id: str) -> bool:
        """Forget a blob; whether there was one."""
        if not is_response_id(response_id):
            return False
        removed = await self._redis.execute("DEL", keyspace.response(tenant_id, response_id))
        return bool(removed)


def is_response_id(response_id: str) -> bool:
    """Whether `response_id` may name a response."""
    return _RESPONSE_ID.fullmatch(response_id) is not None


def check_response_id(response_id: str) -> None:
    """Raises `InvalidField` unless `response_id` may name a response."""
    if not is_response_id(response_id):
        raise InvalidField("response_id", "1 to 128 characters out of A-Z, a-z, 0-9, '_', '-'")


async def save_blob(
    redis: GuardedRedis, tenant_id: str, key: str, blob: bytes, ttl_seconds: float
) -> None:
    """Keep a blob in a tenant's slot, unless the tenant was deleted meanwhile.

    Raises `InvalidField` ("ttl_seconds"), `StoreUnavailable`.
    """
    milliseconds = int(ttl_seconds * 1000)
    if milliseconds <= 0:
        raise InvalidField("ttl_seconds", "must be greater than 0")
    await redis.run_script(_SAVE, [keyspace.meta(tenant_id), key], [blob, milliseconds])
