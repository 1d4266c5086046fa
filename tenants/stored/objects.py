"""What the service keeps for a tenant's clients: responses, conversations, chat completions.

They share one store and its bounds; what is in a blob is the service's business, and encrypted.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Literal

from tenants import redis_keys
from tenants.errors import InvalidField
from tenants.keyring import REVISION_BYTES as REVISION_BYTES
from tenants.keyring import Keyring
from tenants.records import Change
from tenants.storage import changes
from tenants.storage.commits import ANY
from tenants.storage.connection import GuardedRedis
from tenants.stored.blobs import StoredBlobs
from tenants.writes.writes import until_committed

Kind = Literal["response", "conversation", "completion", "suspended"]
_OBJECT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class StoredObjects:
    """Blobs of one kind by tenant and id. All methods raise `StoreUnavailable` without Redis."""

    _head_bytes = 0

    def __init__(
        self,
        redis: GuardedRedis,
        keyring: Keyring,
        kind: Kind = "response",
        default_bytes: int | None = None,
    ) -> None:
        self._redis = redis
        self._kind = kind
        self._blobs = StoredBlobs(redis, keyring, default_bytes)

    async def save(
        self,
        tenant_id: str,
        object_id: str,
        blob: bytes,
        ttl_seconds: float,
        max_bytes: int | None = None,
        generation: str = ANY,
    ) -> None:
        """Keep a blob for `ttl_seconds`, in place of an earlier one; the oldest may have to go.

        Nothing is kept of a tenant that was deleted while it was being answered, be there another
        `generation` of its id. `max_bytes` is
        the tenant's own limit of what is kept of it. Raises `InvalidField` ("id", "ttl_seconds"),
        `TooLargeToStore`.
        """
        check_object_id(object_id)
        key = self._key(tenant_id, object_id)
        await self._blobs.save(tenant_id, key, blob, ttl_seconds, max_bytes, generation=generation)

    async def load(self, tenant_id: str, object_id: str) -> bytes | None:
        """The tenant's blob, or `None`: never another tenant's."""
        if not is_object_id(object_id):
            return None
        return await self._blobs.load(tenant_id, self._key(tenant_id, object_id), self._head_bytes)

    async def delete(self, tenant_id: str, object_id: str) -> bool:
        """Forget a blob, and have all processes forget it; whether there was one."""
        if not is_object_id(object_id):
            return False
        found = await self._blobs.delete(tenant_id, self._key(tenant_id, object_id))
        await self.have_forgotten(tenant_id, object_id)
        return found

    async def have_forgotten(self, tenant_id: str, name: str) -> None:
        """Have all processes forget what they remember under a name."""
        notice = Change(kind="forget", tenant_id=tenant_id, name=name)
        await self._redis.execute(*changes.publication(notice))

    def _key(self, tenant_id: str, object_id: str) -> str:
        return redis_keys.stored_object(tenant_id, self._kind, object_id)


class EditedObjects(StoredObjects):
    """Blobs that change: each begins with its revision, bytes that no two versions share."""

    _head_bytes = REVISION_BYTES

    async def put(
        self,
        tenant_id: str,
        object_id: str,
        content: bytes,
        ttl_seconds: float,
        max_bytes: int | None = None,
        listed_at: float | None = None,
        generation: str = ANY,
    ) -> bytes:
        """Keep something new; its revision. Raises what `save` raises.

        It is found by `listed` where it has a time, in Unix seconds.
        """
        check_object_id(object_id)
        key, revision = self._key(tenant_id, object_id), secrets.token_bytes(REVISION_BYTES)
        await self._blobs.save(
            tenant_id,
            key,
            content,
            ttl_seconds,
            max_bytes,
            head=revision,
            listed_at=listed_at,
            generation=generation,
        )
        return revision

    async def edit(
        self,
        tenant_id: str,
        object_id: str,
        edit: Callable[[bytes], bytes],
        ttl_seconds: float,
        max_bytes: int | None = None,
        listed_at: float | None = None,
        generation: str = ANY,
    ) -> bytes | None:
        """What `edit` makes of the content, begun by its revision; `None` where there is none.

        It is called again when others come in between. Raises what `save` raises, and
        `StoreConflict`.
        """

        async def attempt() -> bytes | None:
            old = await self.load(tenant_id, object_id)
            if old is None:
                return b""
            revision, content = secrets.token_bytes(REVISION_BYTES), edit(old[REVISION_BYTES:])
            saved = await self._blobs.save(
                tenant_id,
                self._key(tenant_id, object_id),
                content,
                ttl_seconds,
                max_bytes,
                head=revision,
                replacing=old[:REVISION_BYTES],
                listed_at=listed_at,
                generation=generation,
            )
            return revision + content if saved else None

        return await until_committed(attempt) or None

    async def listed(
        self, tenant_id: str, after: str | None, *, newest_first: bool, limit: int
    ) -> list[tuple[str, bytes | None]] | None:
        """Ids and blobs behind `after` by their times, up to `limit`.

        What has just expired has no blob. `None` where `after` is not in the list.
        """
        prefix = self._key(tenant_id, "")
        keys = await self._blobs.listed(
            tenant_id, None if after is None else prefix + after, newest_first, limit
        )
        if not keys:
            return None if keys is None else []
        blobs = await self._blobs.load_each(tenant_id, keys, self._head_bytes)
        return [(key.removeprefix(prefix), blob) for key, blob in zip(keys, blobs, strict=True)]


class SuspendedResponses(StoredObjects):
    """Responses that a stopping service could not finish: who starts next may go on with one."""

    def __init__(
        self, redis: GuardedRedis, keyring: Keyring, default_bytes: int | None = None
    ) -> None:
        super().__init__(redis, keyring, "suspended", default_bytes)

    async def take(self, tenant_id: str, response_id: str) -> bytes | None:
        """The tenant's blob, which is then nobody else's; `None` if it is gone."""
        if not is_object_id(response_id):
            return None
        return await self._blobs.take(tenant_id, self._key(tenant_id, response_id))

    async def holds(self, tenant_id: str, response_id: str) -> bool:
        """Whether somebody can still go on with a response."""
        return await self.load(tenant_id, response_id) is not None


def is_object_id(object_id: str) -> bool:
    """Whether `object_id` may name a response, a conversation or a completion."""
    return _OBJECT_ID.fullmatch(object_id) is not None


def check_object_id(object_id: str) -> None:
    """Raises `InvalidField` unless `object_id` may name something that is kept."""
    if not is_object_id(object_id):
        raise InvalidField("id", "1 to 128 characters out of A-Z, a-z, 0-9, '_', '-'")
