"""Files that a tenant's clients upload, to name them in requests by their ids.

A file lies in encrypted pieces of bounded size, beside a record that is written last: nobody finds
it before all of it is there. Nothing makes room for another one: what is more than its tenant may
keep is refused, until files are deleted or have expired.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import msgspec

from tenants import redis_keys
from tenants.at_rest.records import decoded
from tenants.at_rest.sealer import PIECE_BYTES
from tenants.errors import FileGone, FilesExceeded, InvalidField, StoreConflict, StoreUnavailable
from tenants.keyring import Keyring
from tenants.records import Tenant, TenantLimits
from tenants.storage.commits import LIVES, commit_if
from tenants.storage.connection import GuardedRedis, Script
from tenants.stored.objects import is_object_id

_PREFIX: Final = "file-"
_ID_BYTES: Final = 16
_UPLOAD_MILLISECONDS: Final = 600_000
"""How long what has come waits for the rest."""
_GONE_AT_ONCE: Final = 256
"""Files that one call takes out of the books at most: Redis does nothing else meanwhile."""
_RESERVED, _AGAIN, _TOO_MANY, _TOO_LARGE = 1, 2, 3, 4

# Shared by the scripts. KEYS: file-ends, file-bytes, files. What has expired is struck with the
# next file, or list: all of it but for the books has gone by then.
_BOOKS = f"""
local ends, sizes, made = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function strike(id)
  local size = redis.call('HGET', sizes, id)
  if not size then return end
  redis.call('HDEL', sizes, id)  -- a full Redis takes what follows this, and not that alone
  redis.call('HINCRBY', sizes, ':total', -size)
  redis.call('ZREM', ends, id)
  redis.call('ZREM', made, id)
end
local function strike_expired()
  local gone = redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, {_GONE_AT_ONCE})
  for _, id in ipairs(gone) do strike(id) end
  return #gone < {_GONE_AT_ONCE}
end
local function last(milliseconds)
  for _, key in ipairs({{ends, sizes, made}}) do
    if redis.call('PTTL', key) < milliseconds then redis.call('PEXPIRE', key, milliseconds) end
  end
end
"""

# KEYS: and meta, generation. ARGV: the id, its bytes, milliseconds that they wait, how many files
# and how many bytes there may be (empty is no limit), the generation that is meant. Gives 2 where
# there is more to strike: call again.
_RESERVE = Script(
    LIVES
    + _BOOKS
    + f"""
if not lives({{KEYS[4]}}, KEYS[5], ARGV[6]) then return 0 end
if not strike_expired() then return {_AGAIN} end
local size, wait = tonumber(ARGV[2]), tonumber(ARGV[3])
if ARGV[4] ~= '' and redis.call('ZCARD', ends) >= tonumber(ARGV[4]) then return {_TOO_MANY} end
local total = tonumber(redis.call('HGET', sizes, ':total') or 0)
if ARGV[5] ~= '' and total + size > tonumber(ARGV[5]) then return {_TOO_LARGE} end
redis.call('ZADD', ends, now + wait, ARGV[1])
redis.call('HSET', sizes, ARGV[1], size)
redis.call('HINCRBY', sizes, ':total', size)
last(wait)
return {_RESERVED}
"""
)

# KEYS: and meta, generation, the record, the pieces. ARGV: the id, the record, milliseconds to keep
# them, when the file was made, the generation. Gives whether all is still there.
_KEEP = Script(
    LIVES
    + _BOOKS
    + """
if not lives({KEYS[4]}, KEYS[5], ARGV[5]) then return 0 end
local id, ttl = ARGV[1], tonumber(ARGV[3])
if redis.call('HEXISTS', sizes, id) == 0 then return 0 end
for at = 7, #KEYS do
  if redis.call('PEXPIRE', KEYS[at], ttl) == 0 then return 0 end
end
redis.call('SET', KEYS[6], ARGV[2], 'PX', ttl)
redis.call('ZADD', ends, now + ttl, id)
redis.call('ZADD', made, ARGV[4], id)
last(ttl)
return 1
"""
)

# KEYS: and the record, the pieces. ARGV: the id. Gives whether there was a record.
_REMOVE = Script(
    _BOOKS
    + """
strike(ARGV[1])
local found = redis.call('UNLINK', KEYS[4])
for at = 5, #KEYS do redis.call('UNLINK', KEYS[at]) end
return found
"""
)

# ARGV: the id behind which to begin (empty is at the beginning), how many, and 'REV' for the newest
# first. Gives ids; nothing where that one is not there, and 2 to be called again.
_LIST = Script(
    _BOOKS
    + f"""
if not strike_expired() then return {_AGAIN} end
local first = 0
if ARGV[1] ~= '' then
  local rank = redis.call('Z' .. ARGV[3] .. 'RANK', made, ARGV[1])
  if not rank then return false end
  first = rank + 1
end
return redis.call('Z' .. ARGV[3] .. 'RANGE', made, first, first + tonumber(ARGV[2]) - 1)
"""
)


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file, of `num_bytes` in so many `pieces`, which never changes."""

    id: str
    filename: str
    purpose: str
    num_bytes: int
    pieces: int
    created_at: float
    expires_at: float


class NewFile(NamedTuple):
    """What is uploaded, for how long, and what its client calls it."""

    content: bytes
    filename: str
    purpose: str
    ttl_seconds: float


class StoredFiles:
    """The files of all tenants, each found by its own tenant. Raises `StoreUnavailable`."""

    def __init__(self, redis: GuardedRedis, keyring: Keyring, defaults: TenantLimits) -> None:
        """`defaults` are the limits of tenants without their own."""
        self._redis = redis
        self._keyring = keyring
        self._defaults = defaults

    async def put(self, tenant: Tenant, new: NewFile) -> FileRecord:
        """Keep a file. Raises `FilesExceeded`, `InvalidField` ("ttl_seconds"), and `StoreConflict`
        where it takes too long, or its tenant was deleted meanwhile; then nothing is kept.
        """
        if new.ttl_seconds <= 0:
            raise InvalidField("ttl_seconds", "must be greater than 0")
        now, size = time.time(), len(new.content)
        record = FileRecord(
            id=f"{_PREFIX}{secrets.token_hex(_ID_BYTES)}",
            filename=new.filename,
            purpose=new.purpose,
            num_bytes=size,
            pieces=-(-size // PIECE_BYTES),
            created_at=now,
            expires_at=now + new.ttl_seconds,
        )
        try:
            await self._reserve(tenant, record)
            for number, key in enumerate(_pieces(tenant.id, record)):
                piece = new.content[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
                await self._add(tenant.id, record, key, piece)
            await self._keep(tenant, record, new.ttl_seconds)
        except BaseException:
            with contextlib.suppress(StoreUnavailable):  # it expires
                await self._remove(tenant.id, record)
            raise
        return record

    async def get(self, tenant_id: str, file_id: str) -> FileRecord | None:
        """The tenant's file, or `None`: never another tenant's."""
        if not is_object_id(file_id):
            return None
        (record,) = await self._records(tenant_id, [file_id])
        return record

    async def read(self, tenant_id: str, record: FileRecord) -> AsyncIterator[bytes]:
        """A file's bytes, `PIECE_BYTES` at a time. Raises `FileGone`, also on the way."""
        for key in _pieces(tenant_id, record):
            blob = await self._redis.execute("GET", key)
            piece = None if blob is None else await self._keyring.open(tenant_id, blob, key)
            if piece is None:
                raise FileGone(record.id)
            yield piece

    async def delete(self, tenant_id: str, file_id: str) -> bool:
        """Forget a file; whether there was one."""
        record = await self.get(tenant_id, file_id)
        return record is not None and await self._remove(tenant_id, record)

    async def listed(
        self, tenant_id: str, after: str | None, *, newest_first: bool, limit: int
    ) -> list[tuple[str, FileRecord | None]] | None:
        """Ids and files behind `after` by when they were made, up to `limit`.

        What has just gone has no file. `None` where `after` is not in the list.
        """
        order = "REV" if newest_first else ""
        ids: Any = _AGAIN
        while ids == _AGAIN:
            ids = await self._redis.run_script(
                _LIST, _books(tenant_id), [after or "", limit, order]
            )
        if not ids:
            return None if ids is None else []
        names = [one.decode() for one in ids]
        return list(zip(names, await self._records(tenant_id, names), strict=True))

    async def _reserve(self, tenant: Tenant, record: FileRecord) -> None:
        limits = tenant.limits.over(self._defaults)
        given: list[str | int] = [
            *(record.id, record.num_bytes, _UPLOAD_MILLISECONDS),
            *("" if most is None else most for most in (limits.files, limits.file_bytes)),
            tenant.generation,
        ]
        result = _AGAIN
        while result == _AGAIN:
            result = await self._redis.run_script(_RESERVE, _living(tenant.id), given)
        if result in (_TOO_MANY, _TOO_LARGE) and 0 in (limits.files, limits.file_bytes):
            raise FilesExceeded("No files may be kept")
        if result == _TOO_MANY:
            raise FilesExceeded(f"{limits.files} files may be kept: delete one first")
        if result == _TOO_LARGE:
            raise FilesExceeded(
                f"{limits.file_bytes} bytes of files may be kept, and with these "
                f"{record.num_bytes} there would be more: delete files first"
            )
        if result != _RESERVED:
            raise _gone_meanwhile()

    async def _add(self, tenant_id: str, record: FileRecord, key: str, piece: bytes) -> None:
        sealed = await self._keyring.seal(tenant_id, piece, key)
        reserved = ("HEXISTS", redis_keys.file_bytes(tenant_id), record.id), b"1"
        if sealed is None or not await commit_if(
            self._redis, [reserved], [("SET", key, sealed, "PX", _UPLOAD_MILLISECONDS)]
        ):
            raise _gone_meanwhile()

    async def _keep(self, tenant: Tenant, record: FileRecord, ttl_seconds: float) -> None:
        key = redis_keys.file(tenant.id, record.id)
        sealed = await self._keyring.seal(tenant.id, msgspec.msgpack.encode(record), key)
        keys = [*_living(tenant.id), key, *_pieces(tenant.id, record)]
        ttl = int(ttl_seconds * 1000)
        if sealed is None or not await self._redis.run_script(
            _KEEP, keys, [record.id, sealed, ttl, record.created_at, tenant.generation]
        ):
            raise _gone_meanwhile()

    async def _remove(self, tenant_id: str, record: FileRecord) -> bool:
        key = redis_keys.file(tenant_id, record.id)
        keys = [*_books(tenant_id), key, *_pieces(tenant_id, record)]
        return bool(await self._redis.run_script(_REMOVE, keys, [record.id]))

    async def _records(self, tenant_id: str, ids: list[str]) -> list[FileRecord | None]:
        keys = [redis_keys.file(tenant_id, one) for one in ids]
        found = list[FileRecord | None]()
        for key, blob in zip(keys, await self._redis.execute("MGET", *keys), strict=True):
            content = None if blob is None else await self._keyring.open(tenant_id, blob, key)
            found.append(None if content is None else decoded(content, FileRecord, key))
        return found


def _gone_meanwhile() -> StoreConflict:
    return StoreConflict("the file took too long to be kept, or its tenant is gone")


def _books(tenant_id: str) -> list[str]:
    names = redis_keys.file_ends, redis_keys.file_bytes, redis_keys.files
    return [name(tenant_id) for name in names]


def _living(tenant_id: str) -> list[str]:
    return [*_books(tenant_id), redis_keys.meta(tenant_id), redis_keys.generation(tenant_id)]


def _pieces(tenant_id: str, record: FileRecord) -> list[str]:
    return [redis_keys.file_piece(tenant_id, record.id, one) for one in range(record.pieces)]
