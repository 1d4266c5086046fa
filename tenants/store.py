"""Tenants and their API keys: made, changed and deleted by an operator, looked up by every request.

A write commits in the tenant's own slot with one script. What lies elsewhere (the list of tenants,
the look-up of keys) is written so that a crash in between leaves nothing that counts: a tenant
exists while its `meta` does, a key is valid while its tenant lists it.
"""

from __future__ import annotations

import functools
import hmac
import secrets
import time
from collections.abc import AsyncGenerator, Sequence

import msgspec

from tenants import api_keys, changes, keyspace
from tenants.cache import ReadThroughCache
from tenants.connection import Command, GuardedRedis, Script
from tenants.errors import (
    InvalidField,
    PepperMismatch,
    StoreConflict,
    StoreUnavailable,
    TenantExists,
    TenantNotFound,
)
from tenants.records import (
    SECRET_BYTES,
    ApiKey,
    Change,
    Tenant,
    check_tenant_id,
    check_tenant_name,
    is_tenant_id,
)

__all__ = ["StoreUnavailable", "TenantStore"]

CACHE_SECONDS = 5.0
STALE_SECONDS = 3600.0
_MAX_LIVE_KEYS = 2
_MAX_OVERLAP_SECONDS = 366 * 24 * 3600.0
_SCAN_COUNT = 1000
_MAX_ATTEMPTS = 5

_tenant_decoder = msgspec.msgpack.Decoder(Tenant)
_keys_decoder = msgspec.msgpack.Decoder(list[ApiKey])

# KEYS: meta, deleting, keys. ARGV: the tenant, its keys, the channel, the notice.
_CREATE = Script("""
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[3], ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
""")

# KEYS: meta, keys. ARGV: the keys as they were read, as they shall be, the channel, the notice.
_REPLACE_KEYS = Script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
""")

# KEYS: meta, deleting. ARGV: the channel, the notice. From here on nothing can be added to it.
_BEGIN_DELETE = Script("""
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
""")


class _KeyOwner(msgspec.Struct, frozen=True):
    """A tenant, as one of its keys found it."""

    tenant: Tenant
    key: ApiKey


class TenantStore:
    """Tenants over one Redis. All methods raise `StoreUnavailable` while it is down.

    `authenticate` is the exception: a tenant seen in the last `stale_seconds` stays known.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        pepper: bytes,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._redis = redis
        self._pepper = pepper
        self._owners: ReadThroughCache[bytes, _KeyOwner] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=False
        )
        redis.add_listener(self._on_change)

    async def ping(self) -> None:
        """A round trip."""
        await self._redis.execute("PING")

    async def check_pepper(self) -> None:
        """Raises `PepperMismatch` unless this store's keys were made with our pepper.

        An empty store takes ours.
        """
        ours = api_keys.fingerprint(self._pepper)
        await self._redis.execute("SET", keyspace.PEPPER, ours, "NX")
        stored = await self._redis.execute("GET", keyspace.PEPPER)
        if stored is None or not hmac.compare_digest(stored, ours):
            raise PepperMismatch

    async def create_tenant(self, tenant_id: str, name: str | None = None) -> tuple[Tenant, str]:
        """A new tenant and its API key, which nobody can read again.

        Raises `InvalidField` ("id", "name"), `TenantExists`, `PepperMismatch`.
        """
        name = tenant_id if name is None else name
        check_tenant_id(tenant_id)
        check_tenant_name(name)
        await self.check_pepper()
        tenant = Tenant(
            id=tenant_id,
            name=name,
            namespace_secret=secrets.token_bytes(SECRET_BYTES),
            created_at=time.time(),
        )
        api_key, record = self._new_key(tenant_id)
        # First into the list, which skips ids without a tenant: listed, or not there at all.
        await self._redis.execute("SADD", keyspace.TENANTS, tenant_id)
        change = Change(kind="tenant", tenant_id=tenant_id)
        created = await self._redis.run_script(
            _CREATE,
            [keyspace.meta(tenant_id), keyspace.deleting(tenant_id), keyspace.keys(tenant_id)],
            [
                msgspec.msgpack.encode(tenant),
                msgspec.msgpack.encode([record]),
                keyspace.CHANGES,
                changes.encode(change),
            ],
        )
        if not created:
            raise TenantExists(tenant_id)
        await self._write_lookups(record)
        self._redis.notify(change)
        return tenant, api_key

    async def list_tenants(self) -> list[Tenant]:
        """All tenants by id."""
        ids = sorted(
            member.decode() for member in await self._redis.execute("SMEMBERS", keyspace.TENANTS)
        )
        blobs = await self._redis.pipeline(*(("GET", keyspace.meta(one)) for one in ids))
        return [_tenant_decoder.decode(blob) for blob in blobs if blob is not None]

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """Raises `TenantNotFound`."""
        if not is_tenant_id(tenant_id):
            raise TenantNotFound(tenant_id)
        blob = await self._redis.execute("GET", keyspace.meta(tenant_id))
        if blob is None:
            raise TenantNotFound(tenant_id)
        return _tenant_decoder.decode(blob)

    async def delete_tenant(self, tenant_id: str) -> None:
        """Remove a tenant and everything of it. Raises `TenantNotFound`.

        It is gone for every request at once; when this is cut off while it clears up, calling it
        again finishes the work.
        """
        if not is_tenant_id(tenant_id):
            raise TenantNotFound(tenant_id)
        change = Change(kind="tenant", tenant_id=tenant_id)
        deleting = keyspace.deleting(tenant_id)
        begun = await self._redis.run_script(
            _BEGIN_DELETE,
            [keyspace.meta(tenant_id), deleting],
            [keyspace.CHANGES, changes.encode(change)],
        )
        if not begun:
            raise TenantNotFound(tenant_id)
        self._redis.notify(change)
        keys = _decode_keys(await self._redis.execute("GET", keyspace.keys(tenant_id)))
        await self._redis.pipeline(*(("DEL", keyspace.api_key(key.digest)) for key in keys))
        await self._remove_slot(tenant_id, keep=deleting)
        await self._redis.execute("SREM", keyspace.TENANTS, tenant_id)
        await self._redis.execute("DEL", deleting)

    async def rotate_key(self, tenant_id: str, overlap_seconds: float = 0) -> str:
        """A new API key; the newest of the old ones stays valid for `overlap_seconds`, no other.

        Raises `InvalidField` ("overlap_seconds"), `TenantNotFound`, `PepperMismatch`.
        """
        if not 0 <= overlap_seconds <= _MAX_OVERLAP_SECONDS:
            raise InvalidField("overlap_seconds", f"0 to {_MAX_OVERLAP_SECONDS:.0f}")
        if not is_tenant_id(tenant_id):
            raise TenantNotFound(tenant_id)
        await self.check_pepper()
        change = Change(kind="keys", tenant_id=tenant_id)
        for _ in range(_MAX_ATTEMPTS):
            api_key, record = self._new_key(tenant_id)
            before = await self._redis.execute("GET", keyspace.keys(tenant_id))
            old = _decode_keys(before)
            live = [key for key in old if key.is_live(record.created_at)]
            kept, retired = _retire(live, record.created_at, overlap_seconds)
            # Dead since an earlier rotation: the list must not forget them before their look-up is
            # gone, or nobody would find it again.
            await self._redis.pipeline(
                *(("DEL", keyspace.api_key(key.digest)) for key in old if key not in live)
            )
            outcome = await self._redis.run_script(
                _REPLACE_KEYS,
                [keyspace.meta(tenant_id), keyspace.keys(tenant_id)],
                [
                    before or b"",
                    msgspec.msgpack.encode([record, *kept, *retired]),
                    keyspace.CHANGES,
                    changes.encode(change),
                ],
            )
            if outcome < 0:
                raise TenantNotFound(tenant_id)
            if outcome:
                await self._write_lookups(record, kept, retired)
                self._redis.notify(change)
                return api_key
        raise StoreConflict(
            f"the keys of tenant {tenant_id!r} are being changed by others; try again"
        )

    async def authenticate(self, api_key: str) -> Tenant | None:
        """The tenant that holds `api_key`, or `None`.

        Raises `StoreUnavailable` for a key not seen lately while the store is down.
        """
        if api_keys.parse(api_key) is None:
            return None
        digest = api_keys.digest(api_key, self._pepper)
        owner = await self._owners.get(digest, functools.partial(self._find_owner, digest))
        return owner.tenant if owner is not None and owner.key.is_live(time.time()) else None

    def changes(self) -> AsyncGenerator[Change, None]:
        """Every change from now on, see `tenants.changes.listen`.

        While somebody iterates, copies kept here are dropped the moment they are out of date.
        """
        return changes.listen(self._redis)

    async def count_listeners(self) -> int:
        """How many iterate over `changes` right now, in all processes."""
        return await changes.count_subscribers(self._redis)

    def _new_key(self, tenant_id: str) -> tuple[str, ApiKey]:
        api_key = api_keys.generate()
        key_id = api_keys.parse(api_key)
        assert key_id is not None
        record = ApiKey(
            id=key_id,
            tenant_id=tenant_id,
            digest=api_keys.digest(api_key, self._pepper),
            created_at=time.time(),
        )
        return api_key, record

    async def _find_owner(self, digest: bytes) -> _KeyOwner | None:
        found = await self._redis.execute("GET", keyspace.api_key(digest))
        if found is None:
            return None
        tenant_id = found.decode()
        tenant, keys = await self._redis.execute(
            "MGET", keyspace.meta(tenant_id), keyspace.keys(tenant_id)
        )
        if tenant is None:
            return None
        for key in _decode_keys(keys):
            if hmac.compare_digest(key.digest, digest) and key.is_live(time.time()):
                return _KeyOwner(_tenant_decoder.decode(tenant), key)
        return None

    async def _write_lookups(
        self, new: ApiKey, kept: Sequence[ApiKey] = (), retired: Sequence[ApiKey] = ()
    ) -> None:
        """Make the look-up of keys agree with the tenant's list."""
        commands: list[Command] = [("SET", keyspace.api_key(new.digest), new.tenant_id)]
        for key in kept:
            assert key.expires_at is not None
            # Rounded up: the list decides, the look-up may only outlive it.
            end_ms = int(key.expires_at * 1000) + 1
            commands.append(("PEXPIREAT", keyspace.api_key(key.digest), end_ms))
        commands += [("DEL", keyspace.api_key(key.digest)) for key in retired]
        *_, exists = await self._redis.pipeline(*commands, ("EXISTS", keyspace.meta(new.tenant_id)))
        if not exists:  # deleted in this moment, perhaps by somebody who no longer saw this key
            await self._redis.execute("DEL", keyspace.api_key(new.digest))
            raise TenantNotFound(new.tenant_id)

    async def _remove_slot(self, tenant_id: str, keep: str) -> None:
        # Whatever was there when the tenant's `meta` went is seen by one full scan.
        cursor = b"0"
        while True:
            cursor, names = await self._redis.execute(
                "SCAN", cursor, "MATCH", keyspace.everything_of(tenant_id), "COUNT", _SCAN_COUNT
            )
            doomed = [name for name in names if name != keep.encode()]
            if doomed:
                await self._redis.execute("UNLINK", *doomed)
            if int(cursor) == 0:
                return

    def _on_change(self, change: Change) -> None:
        if change.kind == "resync":
            self._owners.expire()
        elif change.kind in ("tenant", "keys"):
            self._owners.drop_if(
                lambda _, owner: owner is not None and owner.tenant.id == change.tenant_id
            )


def _decode_keys(blob: bytes | None) -> list[ApiKey]:
    return [] if blob is None else _keys_decoder.decode(blob)


def _retire(
    live: list[ApiKey], now: float, overlap_seconds: float
) -> tuple[list[ApiKey], list[ApiKey]]:
    """Which live keys, the newest first, stay beside a new one, until when; and which end now."""
    end = now + overlap_seconds
    num_kept = _MAX_LIVE_KEYS - 1 if overlap_seconds > 0 else 0
    kept = [
        msgspec.structs.replace(
            key, expires_at=end if key.expires_at is None else min(end, key.expires_at)
        )
        for key in live[:num_kept]
    ]
    return kept, [msgspec.structs.replace(key, expires_at=now) for key in live[num_kept:]]
