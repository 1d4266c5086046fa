"""Stored responses: what a later turn continues from, also after a restart."""

from __future__ import annotations

from tenants import keyspace
from tenants.connection import StoreConnection


class Conversations:
    """Opaque records by tenant and response id; another tenant's id is simply not found."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def save(self, tenant_id: str, response_id: str, blob: bytes, ttl_seconds: int) -> None:
        """Keep a record for `ttl_seconds`."""
        async with self._connection.use() as redis:
            await redis.set(keyspace.response(tenant_id, response_id), blob, ex=ttl_seconds)

    async def load(self, tenant_id: str, response_id: str) -> bytes | None:
        """A record, or `None`."""
        async with self._connection.use() as redis:
            blob: bytes | None = await redis.get(keyspace.response(tenant_id, response_id))
        return blob
