"""What is not encrypted under the newest secret is encrypted again, unless it has changed."""

from __future__ import annotations

from tenants.at_rest.keyring import Keyring
from tenants.at_rest.sealer import HEAD_BYTES, is_sealed
from tenants.commits import Check, commit_if
from tenants.connection import GuardedRedis


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


def _begins(key: str, start: bytes) -> Check:
    return ("GETRANGE", key, 0, len(start) - 1), start


def _is(key: str, value: bytes) -> Check:
    return ("GET", key), value
