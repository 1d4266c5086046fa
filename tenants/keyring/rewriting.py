"""What is not encrypted under the newest secret is encrypted again, unless it has changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from redis.exceptions import ResponseError

from tenants.at_rest.sealer import HEAD_BYTES, is_sealed
from tenants.errors import StoreUnavailable
from tenants.keyring.keyring import Keyring
from tenants.storage.commits import Check, commit_if
from tenants.storage.connection import GuardedRedis

REVISION_BYTES = 16
"""What an object that changes begins with, in clear."""
HEADS: Final[Mapping[str, int]] = {
    "response": 0,
    "suspended": 0,
    "running": 0,
    "conversation": REVISION_BYTES,
    "completion": REVISION_BYTES,
}
"""Kinds of strings that are encrypted, by how many bytes of them are not."""


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
    unchanged = (
        _begins(key, head + record[:HEAD_BYTES]) if is_sealed(record) else _is(key, head + record)
    )
    return await commit_if(redis, [unchanged], [("SET", key, head + sealed, "KEEPTTL")])


async def compact_log(redis: GuardedRedis) -> None:
    """Have an append-only file be written anew, which holds what was overwritten until then."""
    infos = await redis.execute_on_each("INFO", "persistence")
    if any(info.get("aof_enabled") for info in infos):
        with contextlib.suppress(ResponseError, StoreUnavailable):  # one may be under way
            await redis.execute_on_each("BGREWRITEAOF")


def _begins(key: str, start: bytes) -> Check:
    return ("GETRANGE", key, 0, len(start) - 1), start


def _is(key: str, value: bytes) -> Check:
    return ("GET", key), value
