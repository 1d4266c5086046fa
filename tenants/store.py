"""Tenants: made, changed and deleted by an operator; their keys are in `tenants.keys.key_store`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable

from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.errors import InvalidField, StoreUnavailable, TenantExists, TenantNotFound
from tenants.keys.api_keys import lookup_commands
from tenants.keys.key_store import CACHE_SECONDS, STALE_SECONDS, KeyStore
from tenants.keys.operator_tokens import OperatorTokens
from tenants.owners import Owners, clear_slot
from tenants.records import SECRET_BYTES, ApiKey, Change, Tenant, check_tenant, is_id
from tenants.storage import changes, slots
from tenants.storage.commits import Check, absent, exists, holds, keeping
from tenants.storage.connection import Command, GuardedRedis
from tenants.usage import usage
from tenants.usage.usage import DayUsage
from tenants.writes import audit
from tenants.writes.writes import until_committed

__all__ = ["CACHE_SECONDS", "STALE_SECONDS", "StoreUnavailable", "TenantStore"]

FLUSH_GRACE_SECONDS = 3.0
"""How long a deletion waits for other processes to hear of it and hand in what was used."""

_LAST = (redis_keys.usage, redis_keys.generation, redis_keys.deleting)
"""What is removed of a tenant at the end."""


def _as_it_is(tenant: Tenant) -> Tenant:
    return tenant


class TenantStore(KeyStore):
    """Tenants and their keys over one Redis. All methods raise `StoreUnavailable` while it is down.

    `authenticate` is the exception, see `KeyStore`. Every write names who did it, for the audit.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        peppers: Peppers,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        audit_max_entries: int = audit.MAX_ENTRIES,
        flush_grace_seconds: float = FLUSH_GRACE_SECONDS,
    ) -> None:
        super().__init__(
            redis,
            peppers,
            cache_seconds=cache_seconds,
            stale_seconds=stale_seconds,
            audit_max_entries=audit_max_entries,
        )
        self._flush_grace_seconds = flush_grace_seconds
        self._tenants = Owners(redis, self._records, self._writes, Tenant)
        self._operator_tokens = OperatorTokens(redis, peppers, audit_max_entries=audit_max_entries)

    async def ping(self) -> None:
        """A round trip of a write, which changes nothing; a store that is full refuses it."""
        await self._redis.execute("SETRANGE", redis_keys.PROBE, 0, "")

    async def create_tenant(
        self,
        tenant_id: str,
        name: str | None = None,
        *,
        edit: Callable[[Tenant], Tenant] = _as_it_is,
        actor: str = "system",
    ) -> tuple[Tenant, str]:
        """A new tenant and its first API key, called "default", which nobody can read again.

        `edit` may change what a tenant has by default, as in `update_tenant`. Raises
        `InvalidField`, `TenantExists`, `PepperMismatch`.
        """
        draft = Tenant(
            id=tenant_id,
            name=tenant_id if name is None else name,
            namespace_secret=secrets.token_bytes(SECRET_BYTES),
            created_at=time.time(),
        )
        tenant = _edited(draft, edit)
        await self.check_pepper()
        api_key, record = self._new_key(tenant_id, "default")
        created = await until_committed(lambda: self._create(tenant, record, actor))
        return created, api_key

    async def list_tenants(
        self, after: str | None = None, limit: int | None = None
    ) -> list[Tenant]:
        """Up to `limit` tenants by id, from behind the id `after`.

        One whose record was altered is left out, and the log says so.
        """
        return await self._tenants.list(after, limit)

    async def tenant_ids(self, after: str | None, limit: int) -> list[str]:
        """Ids of up to `limit` tenants, from behind the id `after`."""
        return await self._tenants.ids(after, limit)

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """Raises `TenantNotFound`."""
        return (await self._tenants.read(tenant_id))[1]

    async def update_tenant(
        self, tenant_id: str, edit: Callable[[Tenant], Tenant], *, actor: str = "system"
    ) -> Tenant:
        """What `edit` makes of a tenant; called again when others come in between.

        Nothing is written, and the revision stays, when nothing changes. Raises `InvalidField`
        that names the field (as "limits.sockets", or "share_group" for a group that is not there),
        `TenantNotFound`.
        """

        def edited(old: Tenant) -> Tenant:
            new = _edited(old, edit)
            return new if new == old else replace(new, revision=old.revision + 1)

        return await self._tenants.change(tenant_id, "update", actor, edited, self._membership)

    async def rotate_secret(self, tenant_id: str, *, actor: str = "system") -> Tenant:
        """Give a tenant another namespace secret: no block that it has cached is found again.

        What it has stored can still be read, and is to be rewritten, see `tenants.at_rest`. Raises
        `TenantNotFound`, and `StoreConflict` for one with too many former secrets.
        """
        return await self._tenants.rotate_secret(tenant_id, actor)

    async def delete_tenant(self, tenant_id: str, *, actor: str = "system") -> list[DayUsage]:
        """Remove a tenant and everything of it; returns all its usage. Raises `TenantNotFound`.

        It is gone for every request at once; its usage is read when services, if any run, have had
        time to hand in theirs. When this is cut off, calling it again finishes the work.
        """
        await until_committed(lambda: self._begin_delete(tenant_id, actor))
        if await self.count_listeners():
            await asyncio.sleep(self._flush_grace_seconds)
        used = await usage.read_all(self._redis, tenant_id)
        # Nobody can be called so before the end: what is held to the id is not to open another's.
        await self._operator_tokens.revoke_of(tenant_id, actor=actor)
        last = tuple(key(tenant_id) for key in _LAST)
        await clear_slot(self._redis, tenant_id, keep=frozenset(last))
        await self._redis.execute("DEL", *last)
        return used

    def changes(self) -> AsyncGenerator[Change, None]:
        """Every change from now on, see `tenants.storage.changes.listen`.

        While somebody iterates, copies kept here are dropped the moment they are out of date.
        """
        return changes.listen(self._redis)

    async def count_listeners(self) -> int:
        """How many iterate over `changes` right now, in all processes."""
        return await changes.count_subscribers(self._redis)

    async def _create(self, tenant: Tenant, record: ApiKey, actor: str) -> Tenant | None:
        """Write a tenant that is not there yet, and its first key. Raises `TenantExists`."""
        meta, deleting = redis_keys.meta(tenant.id), redis_keys.deleting(tenant.id)
        if await self._redis.execute("EXISTS", meta, deleting):
            raise TenantExists(tenant.id)
        checks, joining = await self._membership(replace(tenant, share_group=None), tenant)
        committed = await self._writes.commit(
            [absent(meta), absent(deleting), *checks],
            [
                ("SET", meta, self._records.encode(tenant)),
                keeping(tenant),
                self._writing_keys(tenant, [record]),
                ("ZADD", redis_keys.TENANTS, 0, tenant.id),
                *lookup_commands([], [record]),
                *joining,
            ],
            Change(kind="tenant", tenant_id=tenant.id),
            audit.note("tenant.create", actor, tenant.id, None, tenant),
        )
        return tenant if committed else None

    async def _membership(self, old: Tenant, new: Tenant) -> tuple[list[Check], list[Command]]:
        """What a change of share group needs, and does to the groups."""
        if old.share_group == new.share_group:
            return [], []
        checks: list[Check] = []
        commands: list[Command] = []
        if old.share_group is not None:
            commands.append(("SREM", redis_keys.members(f"@{old.share_group}"), new.id))
        if new.share_group is not None:
            group = redis_keys.meta(f"@{new.share_group}")
            if not (is_id(new.share_group) and await self._redis.execute("EXISTS", group)):
                raise InvalidField("share_group", f"there is no share group {new.share_group!r}")
            checks.append(exists(group))
            commands.append(("SADD", redis_keys.members(f"@{new.share_group}"), new.id))
        return checks, commands

    async def _begin_delete(self, tenant_id: str, actor: str) -> bool:
        """From here on nothing can be added to the tenant, but usage."""
        change = Change(kind="deleted", tenant_id=tenant_id)
        deleting = redis_keys.deleting(tenant_id)
        try:
            blob, tenant = await self._tenants.read_to_delete(tenant_id)
        except TenantNotFound:
            if not is_id(tenant_id) or not await self._redis.execute("EXISTS", deleting):
                raise
            await slots.finish(self._redis, tenant_id)
            # Cut off before: whoever missed the notice hears it now.
            await self._redis.execute(*changes.publication(change))
            self._redis.notify(change)
            return True
        keys_blob = await self._redis.execute("GET", redis_keys.keys(tenant_id))
        keys = self._keys_of(tenant, keys_blob)
        _, leaving = await self._membership(tenant, replace(tenant, share_group=None))
        return await self._writes.commit(
            [holds(redis_keys.meta(tenant_id), blob), holds(redis_keys.keys(tenant_id), keys_blob)],
            [
                ("RENAME", redis_keys.meta(tenant_id), deleting),
                ("ZREM", redis_keys.TENANTS, tenant_id),
                *lookup_commands(keys, []),
                *leaving,
            ],
            change,
            audit.note("tenant.delete", actor, tenant.id, tenant, None),
        )


def _edited(tenant: Tenant, edit: Callable[[Tenant], Tenant]) -> Tenant:
    """What `edit` may change of a tenant, checked."""
    new = replace(
        edit(tenant),
        id=tenant.id,
        namespace_secret=tenant.namespace_secret,
        former_secrets=tenant.former_secrets,
        created_at=tenant.created_at,
        revision=tenant.revision,
    )
    check_tenant(new)
    return new
