"""The API keys of tenants: made, rotated and revoked by an operator, looked up by every request."""

from __future__ import annotations

import functools
import hmac
import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers, pepper_id
from tenants.at_rest.records import SealedRecords, unless_altered
from tenants.errors import (
    InvalidField,
    SealBroken,
    SealError,
    StoreConflict,
    StoreUnavailable,
    TenantNotFound,
)
from tenants.keys.api_keys import Edit, Held, find, generate, lookup_commands, newest, parse
from tenants.records import (
    ApiKey,
    Change,
    Principal,
    ShareGroup,
    Tenant,
    check_expiry,
    check_name,
    is_id,
)
from tenants.storage import slots
from tenants.storage.cache import ReadThroughCache
from tenants.storage.commits import exists, holds
from tenants.storage.connection import Command, GuardedRedis
from tenants.writes import audit
from tenants.writes.writes import Writes, until_committed

_log = logging.getLogger(__name__)
CACHE_SECONDS = 5.0
STALE_SECONDS = 3600.0
MAX_LIVE_KEYS = 32
"""How many keys of one tenant may be valid at once."""

_MAX_OVERLAP_SECONDS = 366 * 24 * 3600.0


class KeyStore:
    """API keys over one Redis. All methods raise `StoreUnavailable` while it is down.

    `authenticate` is the exception: a key seen in the last `stale_seconds` stays known. A tenant's
    list of keys decides, which is sealed for it; the look-up by digest only finds the list.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        peppers: Peppers,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        audit_max_entries: int = audit.MAX_ENTRIES,
    ) -> None:
        self._redis = redis
        self._peppers = peppers
        self._records = SealedRecords(peppers)
        self._writes = Writes(redis, audit_max_entries)
        self._principals: ReadThroughCache[bytes, Principal] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=False
        )
        redis.add_listener(self._on_change)

    async def check_pepper(self) -> None:
        """Raises `PepperMismatch` unless all peppers that this store uses are known here.

        From here on it may use ours, too.
        """
        await pepper_record.join(self._redis, self._peppers)

    async def create_key(
        self, tenant_id: str, name: str, *, expires_at: float | None = None, actor: str = "system"
    ) -> tuple[ApiKey, str]:
        """One more key of a tenant: its record, and the key itself, which nobody can read again.

        Raises `InvalidField` ("name", "expires_at"), `TenantNotFound`, `PepperMismatch`, and
        `StoreConflict` for a tenant with `MAX_LIVE_KEYS` keys.
        """
        check_name(name)
        check_expiry(expires_at)
        await self.check_pepper()
        api_key, record = self._new_key(tenant_id, name, expires_at)

        def add(keys: list[ApiKey]) -> Edit:
            return Edit([record, *keys], record.id, None, record)

        await self._edit_keys(tenant_id, "key.create", actor, add)
        return record, api_key

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, the newest first; with those that expired since the last change.

        Raises `TenantNotFound`.
        """
        return (await self._read_keys(tenant_id)).keys

    async def get_key(self, tenant_id: str, key_id: str) -> ApiKey:
        """Raises `KeyNotFound`, `TenantNotFound`."""
        return find(await self.list_keys(tenant_id), key_id)

    async def update_key(
        self,
        tenant_id: str,
        key_id: str,
        edit: Callable[[ApiKey], ApiKey],
        *,
        actor: str = "system",
    ) -> ApiKey:
        """What `edit` makes of a key's name and expiry; called again when others come in between.

        Raises `InvalidField` ("name", "expires_at"), `KeyNotFound`, `TenantNotFound`.
        """

        def change(keys: list[ApiKey]) -> Edit:
            key = find(keys, key_id)
            edited = edit(key)
            new = replace(key, name=edited.name, expires_at=edited.expires_at)
            check_name(new.name)
            if new.expires_at != key.expires_at:
                check_expiry(new.expires_at)
            return Edit([new if one is key else one for one in keys], key_id, key, new)

        edit_made = await self._edit_keys(tenant_id, "key.update", actor, change)
        assert edit_made.after is not None
        return edit_made.after

    async def rotate_key(
        self,
        tenant_id: str,
        key_id: str | None = None,
        overlap_seconds: float = 0,
        *,
        actor: str = "system",
    ) -> tuple[ApiKey, str]:
        """A new key in place of an old one, which stays valid for `overlap_seconds`.

        The new one takes over name and expiry. Without `key_id` it is the newest that was not
        replaced yet. Raises `InvalidField` ("overlap_seconds"), `KeyNotFound`, `TenantNotFound`,
        `PepperMismatch`, and `StoreConflict` for a key that was replaced already or is one too
        many.
        """
        if not 0 <= overlap_seconds <= _MAX_OVERLAP_SECONDS:
            raise InvalidField("overlap_seconds", f"0 to {_MAX_OVERLAP_SECONDS:.0f}")
        await self.check_pepper()
        api_key, record = self._new_key(tenant_id)

        def rotate(keys: list[ApiKey]) -> Edit:
            old = find(keys, key_id) if key_id is not None else newest(keys)
            if old.replaced_by is not None:
                raise StoreConflict(f"key {old.id!r} was replaced by {old.replaced_by!r} already")
            new = replace(record, name=old.name, expires_at=old.expires_at)
            end = record.created_at + overlap_seconds
            ends = end if old.expires_at is None else min(end, old.expires_at)
            rest = [
                replace(one, expires_at=ends, replaced_by=new.id) if one is old else one
                for one in keys
                if one is not old or overlap_seconds > 0
            ]
            return Edit([new, *rest], old.id, old, new)

        edit = await self._edit_keys(tenant_id, "key.rotate", actor, rotate)
        assert edit.after is not None
        return edit.after, api_key

    async def revoke_key(self, tenant_id: str, key_id: str, *, actor: str = "system") -> None:
        """End a key at once. Raises `KeyNotFound`, `TenantNotFound`."""

        def remove(keys: list[ApiKey]) -> Edit:
            key = find(keys, key_id)
            return Edit([one for one in keys if one is not key], key_id, key, None)

        await self._edit_keys(tenant_id, "key.revoke", actor, remove)

    async def authenticate(self, api_key: str) -> Principal | None:
        """Whom `api_key` belongs to, also if that tenant is disabled; or `None`.

        Raises `StoreUnavailable` for a key not seen lately while the store is down.
        """
        if parse(api_key) is None:
            return None
        digests = self._peppers.digests(api_key)
        principal = await self._principals.get(
            digests[0], functools.partial(self._find_principal, digests)
        )
        if principal is None or not principal.key.is_live(time.time()):
            return None
        return principal

    def _new_key(
        self, tenant_id: str, name: str = "", expires_at: float | None = None
    ) -> tuple[str, ApiKey]:
        api_key = generate()
        key_id = parse(api_key)
        assert key_id is not None
        record = ApiKey(
            id=key_id,
            tenant_id=tenant_id,
            digest=self._peppers.digests(api_key)[0],
            created_at=time.time(),
            name=name,
            expires_at=expires_at,
            pepper_id=pepper_id(self._peppers.fingerprints[0]),
        )
        return api_key, record

    async def _read_keys(self, tenant_id: str) -> Held:
        if not is_id(tenant_id):
            raise TenantNotFound(tenant_id)
        held = await self._held(tenant_id)
        if held is None:
            raise TenantNotFound(tenant_id)
        return held

    async def _held(self, tenant_id: str) -> Held | None:
        """`None` for a tenant that is not there. Raises `SealError`."""
        meta, blob = await self._redis.execute(
            "MGET", redis_keys.meta(tenant_id), redis_keys.keys(tenant_id)
        )
        if meta is None:
            return None
        tenant = self._records.tenant(tenant_id, meta)
        return Held(tenant, blob, self._keys_of(tenant, blob))

    def _keys_of(self, tenant: Tenant, blob: bytes | None) -> list[ApiKey]:
        """A tenant's list. One that was altered is as good as gone, and the log says so."""
        try:
            return self._records.keys(tenant, blob)
        except SealBroken as error:
            _log.error("a list of API keys is not read: %s", error)
            return []

    async def _edit_keys(
        self, tenant_id: str, action: str, actor: str, edit: Callable[[list[ApiKey]], Edit]
    ) -> Edit:
        """Change a tenant's list, out of which expired keys fall. An edit of nothing is none.

        Where the tenant is deleted meanwhile, another one that is called so is not changed.
        """
        meant = (await self._read_keys(tenant_id)).tenant.generation

        async def attempt() -> Edit | None:
            held = await self._read_keys(tenant_id)
            if held.tenant.generation != meant:
                raise TenantNotFound(tenant_id)
            live = [key for key in held.keys if key.is_live(time.time())]
            edited = edit(live)
            if edited.before == edited.after:
                return edited
            if len(edited.keys) > max(MAX_LIVE_KEYS, len(live)):
                raise StoreConflict(f"a tenant may have {MAX_LIVE_KEYS} live keys")
            committed = await self._writes.commit(
                [exists(redis_keys.meta(tenant_id)), holds(redis_keys.keys(tenant_id), held.blob)],
                [
                    self._writing_keys(held.tenant, edited.keys),
                    *lookup_commands(held.keys, edited.keys),
                ],
                Change(kind="keys", tenant_id=tenant_id),
                audit.note(
                    action, actor, tenant_id, edited.before, edited.after, target=edited.target
                ),
            )
            return edited if committed else None

        return await until_committed(attempt)

    async def _find_principal(self, digests: list[bytes]) -> Principal | None:
        """Whom a key belongs to; `digests` are by each pepper, the current one's first."""
        tenant_ids = await self._redis.pipeline(
            *(("GET", redis_keys.api_key(digest)) for digest in digests)
        )
        for digest, tenant_id in zip(digests, tenant_ids, strict=True):
            found = None if tenant_id is None else await self._find_in(tenant_id, digest)
            if found is not None:
                break
        else:
            return None
        tenant, key = found
        if digest != digests[0]:
            key = await self._rehash(key, digests[0])
        return Principal(tenant=tenant, key=key, group=await self._group_of(tenant))

    async def _group_of(self, tenant: Tenant) -> ShareGroup | None:
        """A tenant's group; one whose record was altered is as good as gone."""
        name = tenant.share_group
        if name is None:
            return None
        blob = await self._redis.execute("GET", redis_keys.meta(f"@{name}"))
        return unless_altered(self._records.group, name, blob)

    async def _rehash(self, key: ApiKey, digest: bytes) -> ApiKey:
        """The key, by its digest with the current pepper from now on where the store is at that.

        It is not before the rotation of the pepper has begun: until then some processes may have
        another one for the current.
        """
        newest = self._peppers.fingerprints[0]
        try:
            if (await pepper_record.in_use(self._redis))[:1] != [newest]:
                return key
            held = await self._read_keys(key.tenant_id)
            new = replace(key, digest=digest, pepper_id=pepper_id(newest))
            edited = [new if one.id == key.id else one for one in held.keys]
            committed = await slots.commit(
                self._redis,
                [holds(redis_keys.keys(key.tenant_id), held.blob)],
                [self._writing_keys(held.tenant, edited), *lookup_commands(held.keys, edited)],
            )
        except (StoreUnavailable, TenantNotFound, SealError):  # it can be found as it is
            return key
        return new if committed else key

    async def _find_in(self, name: bytes, digest: bytes) -> tuple[Tenant, ApiKey] | None:
        """A tenant with its key of this digest; what was altered opens nothing."""
        tenant_id = name.decode("latin-1")
        try:
            held = await self._held(tenant_id) if is_id(tenant_id) else None
        except SealError as error:
            _log.error("an API key opens nothing: %s", error)
            return None
        if held is None:
            return None
        for key in held.keys:
            if hmac.compare_digest(key.digest, digest) and key.is_live(time.time()):
                return held.tenant, key
        return None

    def _writing_keys(self, tenant: Tenant, keys: Sequence[ApiKey]) -> Command:
        """What writes a tenant's list."""
        return ("SET", redis_keys.keys(tenant.id), self._records.encode_keys(tenant, keys))

    def _on_change(self, change: Change) -> None:
        if change.kind == "resync":
            self._principals.expire()
        elif change.kind in ("tenant", "deleted", "keys"):
            self._principals.drop_if(
                lambda _, found: found is not None and found.tenant.id == change.tenant_id
            )
        elif change.kind == "group":
            self._principals.drop_if(
                lambda _, found: found is not None and found.tenant.share_group == change.name
            )
