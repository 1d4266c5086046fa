"""What is kept for a tenant's clients: blobs with an end, of so many bytes together.

They are encrypted, each for its own key in Redis, but for a head that says which version it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tenants import redis_keys
from tenants.errors import InvalidField, StoreUnavailable, TooLargeToStore
from tenants.keyring import Keyring, rewrite
from tenants.prompts.room import TOTAL
from tenants.storage.commits import ANY, LIVES
from tenants.storage.connection import GuardedRedis, Script

_OVERHEAD_BYTES = 512
"""What a blob takes besides its content, about: its key, and its place in the books."""
_GONE_AT_ONCE = 256
"""Blobs that one call takes out of the books at most: Redis does nothing else meanwhile."""
_AGAIN = 2
_CHANGED = 3

# Shared by the scripts. KEYS: the blob's, stored, stored-bytes, listed.
_BOOKS = """
local blob_key, stored, sizes, listed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local function strike(key)
  local size = redis.call('HGET', sizes, key)
  if not size then return end
  redis.call('HINCRBY', sizes, 'total', -size)
  redis.call('HDEL', sizes, key)
  redis.call('ZREM', stored, key)
  redis.call('ZREM', listed, key)
end
"""

# KEYS: and meta, generation, prompt-bytes. ARGV: the blob, milliseconds to keep it, how many bytes
# there may be with the prompts' (empty is no limit), how the blob must begin that it replaces
# (empty is anyhow), when to list it (empty is never), the generation that is meant. Those that
# expire first make room. Gives 2 where there is not enough yet: call again; and 3 where another
# blob is there.
_SAVE = Script(
    LIVES
    + _BOOKS
    + f"""
if not lives({{KEYS[5]}}, KEYS[6], ARGV[6]) then return 1 end
if ARGV[4] ~= '' and redis.call('GETRANGE', blob_key, 0, #ARGV[4] - 1) ~= ARGV[4] then
  return {_CHANGED}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local size, ttl, most = #ARGV[1] + {_OVERHEAD_BYTES}, tonumber(ARGV[2]), tonumber(ARGV[3])
if most then most = most - tonumber(redis.call('HGET', KEYS[7], '{TOTAL}') or 0) end
if most and size > most then return 0 end
strike(blob_key)
local gone = redis.call('ZRANGEBYSCORE', stored, '-inf', now, 'LIMIT', 0, {_GONE_AT_ONCE})
for _, key in ipairs(gone) do strike(key) end
local left = {_GONE_AT_ONCE} - #gone
while most and tonumber(redis.call('HGET', sizes, 'total') or 0) + size > most do
  local oldest = redis.call('ZRANGE', stored, 0, 0)[1]
  if not oldest then break end
  if left == 0 then return {_AGAIN} end
  left = left - 1
  redis.call('UNLINK', oldest)
  strike(oldest)
end
redis.call('SET', blob_key, ARGV[1], 'PX', ttl)
redis.call('ZADD', stored, now + ttl, blob_key)
redis.call('HSET', sizes, blob_key, size)
redis.call('HINCRBY', sizes, 'total', size)
if ARGV[5] ~= '' then redis.call('ZADD', listed, ARGV[5], blob_key) end
for _, key in ipairs({{stored, sizes, listed}}) do
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
end
return 1
"""
)

# Gives the blob.
_TAKE = Script(
    _BOOKS
    + """
local blob = redis.call('GET', blob_key)
redis.call('DEL', blob_key)
strike(blob_key)
return blob
"""
)


class StoredBlobs:
    """Blobs under keys in their tenants' slots. All methods raise `StoreUnavailable`.

    `default_bytes` is what a tenant may keep that has no limit of its own; `None` is no limit.
    """

    def __init__(self, redis: GuardedRedis, keyring: Keyring, default_bytes: int | None) -> None:
        self._redis = redis
        self._keyring = keyring
        self._default_bytes = default_bytes

    async def save(
        self,
        tenant_id: str,
        key: str,
        content: bytes,
        ttl_seconds: float,
        max_bytes: int | None,
        *,
        head: bytes = b"",
        replacing: bytes = b"",
        listed_at: float | None = None,
        generation: str = ANY,
    ) -> bool:
        """Keep a blob, unless the tenant was deleted meanwhile; its oldest ones may have to go.

        It is `head` and the content, encrypted. `max_bytes` is the tenant's own limit, if it has
        one. One that replaces another is kept only where that is still there and begins with the
        head `replacing`: whether it was. With a time it is found by `listed`. Raises
        `InvalidField` ("ttl_seconds"), `TooLargeToStore`.
        """
        milliseconds = int(ttl_seconds * 1000)
        if milliseconds <= 0:
            raise InvalidField("ttl_seconds", "must be greater than 0")
        most = self._default_bytes if max_bytes is None else max_bytes
        sealed = await self._keyring.seal(tenant_id, content, key)
        if sealed is None:
            return True
        blob = head + sealed
        beside = redis_keys.meta, redis_keys.generation, redis_keys.prompt_bytes
        keys = [*_keys(tenant_id, key), *(name(tenant_id) for name in beside)]
        given: list[bytes | int | str | float] = [
            blob,
            milliseconds,
            "" if most is None else most,
            replacing,
            "" if listed_at is None else listed_at,
            generation,
        ]
        result = _AGAIN
        while result == _AGAIN:  # each call makes some room
            result = await self._redis.run_script(_SAVE, keys, given)
        if not result:
            raise TooLargeToStore(tenant_id, len(blob))
        return bool(result != _CHANGED)

    async def load(self, tenant_id: str, key: str, head_bytes: int = 0) -> bytes | None:
        """Head and content of a blob that is still kept."""
        (blob,) = await self.load_each(tenant_id, [key], head_bytes)
        return blob

    async def load_each(
        self, tenant_id: str, keys: Sequence[str], head_bytes: int = 0
    ) -> list[bytes | None]:
        """The same of several; `None` for those that are gone."""
        blobs = await self._redis.pipeline(*(("GET", key) for key in keys))
        return [
            None if blob is None else await self._opened(tenant_id, key, blob, head_bytes)
            for key, blob in zip(keys, blobs, strict=True)
        ]

    async def take(self, tenant_id: str, key: str) -> bytes | None:
        """Content of a blob without a head, which is then nobody else's; `None` if it is gone."""
        await self._keyring.of(tenant_id)  # what is taken is not lost for want of it
        blob = await self._redis.run_script(_TAKE, _keys(tenant_id, key))
        return None if blob is None else await self._keyring.open(tenant_id, blob, key)

    async def delete(self, tenant_id: str, key: str) -> bool:
        """Forget a blob; whether there was one."""
        return await self._redis.run_script(_TAKE, _keys(tenant_id, key)) is not None

    async def listed(
        self, tenant_id: str, after: str | None, newest_first: bool, limit: int
    ) -> list[str] | None:
        """Keys of blobs that have a time, by it, behind the key `after`; `None` without it."""
        index, reverse = redis_keys.listed(tenant_id), "REV" if newest_first else ""
        first = 0
        if after is not None:
            rank = await self._redis.execute(f"Z{reverse}RANK", index, after)
            if rank is None:
                return None
            first = int(rank) + 1
        last = first + limit - 1
        keys = await self._redis.execute(f"Z{reverse}RANGE", index, first, last)
        return [key.decode() for key in keys]

    async def _opened(self, tenant_id: str, key: str, blob: bytes, head_bytes: int) -> bytes | None:
        head, record = blob[:head_bytes], blob[head_bytes:]
        content = await self._keyring.open(tenant_id, record, key)
        if content is None:
            return None
        with contextlib.suppress(StoreUnavailable):  # it is read all the same
            await rewrite(self._redis, self._keyring, tenant_id, key, head, record, content)
        return head + content


def _keys(tenant_id: str, key: str) -> list[str]:
    return [
        key,
        redis_keys.stored(tenant_id),
        redis_keys.stored_bytes(tenant_id),
        redis_keys.listed(tenant_id),
    ]
