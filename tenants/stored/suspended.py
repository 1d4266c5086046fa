"""Responses that a stopping service could not finish: whoever starts next may go on with one."""

from __future__ import annotations

from tenants import redis_keys
from tenants.keyring.keyring import Keyring
from tenants.storage.connection import GuardedRedis
from tenants.storage.generations import ANY
from tenants.stored.blobs import StoredBlobs
from tenants.stored.objects import check_object_id, is_object_id


class SuspendedResponses:
    """Blobs by tenant and response id; what is in a blob is the service's business.

    All methods raise `StoreUnavailable` while Redis is down.
    """

    def __init__(
        self, redis: GuardedRedis, keyring: Keyring, default_bytes: int | None = None
    ) -> None:
        self._blobs = StoredBlobs(redis, keyring, default_bytes)

    async def save(
        self,
        tenant_id: str,
        response_id: str,
        blob: bytes,
        ttl_seconds: float,
        max_bytes: int | None = None,
        generation: str = ANY,
    ) -> None:
        """Keep a blob for `ttl_seconds`, unless the tenant was deleted meanwhile.

        `max_bytes` is the tenant's own limit of what is kept of it. Raises `InvalidField`
        ("id", "ttl_seconds"), `TooLargeToStore`.
        """
        check_object_id(response_id)
        key = redis_keys.suspended(tenant_id, response_id)
        await self._blobs.save(tenant_id, key, blob, ttl_seconds, max_bytes, generation=generation)

    async def take(self, tenant_id: str, response_id: str) -> bytes | None:
        """The tenant's blob, which is then nobody else's; `None` if it is gone."""
        if not is_object_id(response_id):
            return None
        return await self._blobs.take(tenant_id, redis_keys.suspended(tenant_id, response_id))

    async def holds(self, tenant_id: str, response_id: str) -> bool:
        """Whether somebody can still go on with a response."""
        key = redis_keys.suspended(tenant_id, response_id)
        return await self._blobs.load(tenant_id, key) is not None
