"""Which versions adapters have, where their files are, and which of them is active."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest.records import decoded
from tenants.errors import AdapterNotFound
from tenants.records import is_owner, is_prompt_name
from tenants.storage.connection import GuardedRedis
from tenants.writes import audit


class Files(msgspec.Struct, frozen=True, array_like=True):
    """Where the files of a version are, and how much they take."""

    files: str
    pieces: int
    num_bytes: int


class Head(msgspec.Struct, frozen=True):
    """Which versions an adapter has; `active` is `None` when the adapter was deleted."""

    last: int
    active: int | None
    pinned: bool = False
    versions: dict[int, Files] = {}


class Heads:
    """The heads of all owners' adapters. Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis) -> None:
        self._redis = redis

    async def all(self, owner: str) -> dict[str, Head]:
        """Of an owner's adapters, also of those that were deleted, by name."""
        blobs = await self._redis.execute("HGETALL", redis_keys.adapters(owner))
        found = {
            name.decode(): decoded_head(owner, name.decode(), one) for name, one in blobs.items()
        }
        return {name: head for name, head in found.items() if head is not None}

    async def one(self, owner: str, name: str) -> tuple[bytes | None, Head | None]:
        """A head, with how it is stored."""
        blob = await self._redis.execute("HGET", redis_keys.adapters(owner), name)
        return blob, decoded_head(owner, name, blob)

    async def live(self, owner: str, name: str) -> tuple[bytes | None, Head]:
        """Raises `AdapterNotFound`, also where the owner is not there."""
        if is_owner(owner) and is_prompt_name(name):
            blob, head = await self.one(owner, name)
            if head is not None and head.active is not None:
                return blob, head
        raise AdapterNotFound(name)


def decoded_head(owner: str, name: str, blob: bytes | None) -> Head | None:
    """What is stored as an adapter's head; what is none is as good as gone."""
    return None if blob is None else decoded(blob, Head, f"{redis_keys.adapters(owner)} {name}")


def with_version(head: Head, files: Files, activate: bool) -> Head:
    """A head with another version, which is the first or may be active."""
    version = head.last + 1
    active = version if activate or head.active is None else head.active
    return replace(head, last=version, active=active, versions=head.versions | {version: files})


def head_document(head: Head | None) -> audit.Document | None:
    """What the audit says of a head."""
    if head is None or head.active is None:
        return None
    return {"active_version": head.active, "last_version": head.last, "pinned": head.pinned}
