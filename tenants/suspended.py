"""Responses that a stopping service could not finish: whoever starts next may go on with one."""

from __future__ import annotations

from tenants import keyspace
from tenants.connection import GuardedRedis
from tenants.conversations import check_response_id, is_response_id, save_blob


class SuspendedResponses:
    """Blobs by tenant and response id; what is in a blob is the service's business.

    All methods raise `StoreUnavailable` while Redis is down.
    """

    def __init__(self, redis: GuardedRedis) -> None:
        self._redis = redis

    async def save(self, tenant_id: str, response_id: str, blob: bytes, ttl_seconds: float) -> None:
        """Keep a blob for `ttl_seconds`, unless the tenant was deleted meanwhile.

        Raises `InvalidField` ("response_id", "ttl_seconds").
        """
        check_response_id(response_id)
        key = keyspace.suspended(tenant_id, response_id)
        await save_blob(self._redis, tenant_id, key, blob, ttl_seconds)

    async def take(self, tenant_id: str, response_id: str) -> bytes | None:
        """The tenant's blob, which is then nobody else's; `None` if it is gone."""
        if not is_response_id(response_id):
            return None
        key = keyspace.suspended(tenant_id, response_id)
        blob: bytes | None = await self._redis.execute("GETDEL", key)
        return blob
