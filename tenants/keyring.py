"""What encrypts the contents of an owner's slot: keys that derive from its namespace secret.

What is not encrypted under the newest secret is encrypted again, unless it has changed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from redis.exceptions import ResponseError

from engine.blocks.hashing import derive_key
from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.at_rest.records import SealedRecords, unless_altered
from tenants.at_rest.sealer import HEAD_BYTES, Sealer, is_sealed
from tenants.errors import SealBroken, SealUnknown, StoreUnavailable
from tenants.keys.key_store import CACHE_SECONDS, STALE_SECONDS
from tenants.records import Change, ShareGroup, Tenant
from tenants.storage.cache import ReadThroughCache
from tenants.storage.commits import commit_if, holds
from tenants.storage.connection import GuardedRedis

_log = logging.getLogger(__name__)

REVISION_BYTES = 16
"""What an object that changes begins with, in clear."""
HEADS: Final[Mapping[str, int]] = {
    "response": 0,
    "suspended": 0,
    "running": 0,
    "conversation": REVISION_BYTES,
    "completion": REVISION_BYTES,
    "adapter": 0,
    "adapter-piece": 0,
    "file": 0,
    "file-piece": 0,
}
"""Kinds of strings that are encrypted, by how many bytes of them are not."""


class Namespace:
    """What one owner's secrets encrypt, and name, in the store."""

    def __init__(self, record: Tenant | ShareGroup) -> None:
        former = (one.secret for one in record.former_secrets)
        self._secrets = (record.namespace_secret, *former)
        self._owner = record.owner
        self.sealer = Sealer("contents", *self._secrets)

    def text_keys(self, text: str) -> list[str]:
        """Keys under which prompts with this text are found; new ones go under the first.

        They are keyed hashes, which tell nothing to who guesses at the text.
        """
        # A lone surrogate cannot be in a registered text; it must not fail a look-up either.
        data = text.encode(errors="surrogatepass")
        keys = [derive_key(secret, "prompt text") for secret in self._secrets]
        digests = [blake2b(data, key=key, digest_size=32).digest() for key in keys]
        return [redis_keys.prompt_text(self._owner, digest) for digest in digests]


class Keyring:
    """The namespaces of all owners over one Redis, with copies of those that were used lately.

    All methods raise `StoreUnavailable` where only Redis could know. An owner whose record cannot
    be read is not there, and the log says so.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        peppers: Peppers,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._redis = redis
        self._records = SealedRecords(peppers)
        self._namespaces: ReadThroughCache[str, Namespace] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=False
        )
        redis.add_listener(self._on_change)

    async def of(self, owner: str) -> Namespace | None:
        """An owner's namespace; `None` where the owner is not there."""
        return await self._namespaces.get(owner, functools.partial(self._load, owner))

    async def seal(self, owner: str, content: bytes, *place: str) -> bytes | None:
        """A record for `place`; `None` where the owner is not there."""
        namespace = await self.of(owner)
        return None if namespace is None else await namespace.sealer.seal_large(content, *place)

    async def open(self, owner: str, record: bytes, *place: str) -> bytes | None:
        """The content of a record at `place`; `None` where the owner is not there.

        One that cannot be opened, because it was altered or moved, is as good as gone, and the log
        says so.
        """
        for _ in range(2):
            namespace = await self.of(owner)
            if namespace is None:
                return None
            try:
                return await namespace.sealer.open_large(record, *place)
            except SealUnknown as error:
                # Perhaps of a secret that is newer than the copy here.
                problem: Exception = error
                self._forget(owner)
            except SealBroken as error:
                problem = error
                break
        _log.error("a stored record is not read: %s", problem)
        return None

    async def _load(self, owner: str) -> Namespace | None:
        blob = await self._redis.execute("GET", redis_keys.meta(owner))
        record = unless_altered(self._records.of_owner, owner, blob)
        return None if record is None else Namespace(record)

    def _forget(self, owner: str) -> None:
        self._namespaces.drop_if(lambda one, _: one == owner)

    def _on_change(self, change: Change) -> None:
        if change.kind == "resync":
            self._namespaces.expire()
        elif change.kind in ("tenant", "deleted"):
            self._forget(change.tenant_id)
        elif change.kind == "group":
            self._forget(f"@{change.name}")


async def rewrite(
    redis: GuardedRedis,
    keyring: Keyring,
    owner: str,
    key: str,
    head: bytes,
    record: bytes,
    content: bytes,
) -> bool:
    """Encrypt the content of a string of Redis, `head` and `record`; whether that was needed.

    Its time to live stays what it is. Raises `StoreUnavailable`.
    """
    namespace = await keyring.of(owner)
    if namespace is None or namespace.sealer.is_newest(record):
        return False
    sealed = await namespace.sealer.seal_large(content, key)
    unchanged = holds(key, head + record)
    if is_sealed(record):  # its beginning is like no other's
        start = head + record[:HEAD_BYTES]
        unchanged = ("GETRANGE", key, 0, len(start) - 1), start
    return await commit_if(redis, [unchanged], [("SET", key, head + sealed, "KEEPTTL")])


async def compact_log(redis: GuardedRedis) -> None:
    """Have an append-only file be written anew, which holds what was overwritten until then."""
    infos = await redis.execute_on_each("INFO", "persistence")
    if any(info.get("aof_enabled") for info in infos):
        with contextlib.suppress(ResponseError, StoreUnavailable):  # one may be under way
            await redis.execute_on_each("BGREWRITEAOF")
