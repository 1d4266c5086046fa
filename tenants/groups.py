"""Share groups: tenants that use one set of prompts, because an operator put them together.

A tenant joins and leaves by its `share_group`, see `TenantStore.update_tenant`; the group's prompts
are kept by `SystemPrompts` under `group.owner`.
"""

from __future__ import annotations

import builtins
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.at_rest.records import SealedRecords, unless_altered
from tenants.errors import GroupExists, GroupNotFound, SealError, StoreConflict
from tenants.owners import Owners, change_of, clear_slot
from tenants.records import SECRET_BYTES, ShareGroup, Tenant, check_id, check_name, is_id
from tenants.storage import slots
from tenants.storage.commits import absent, holds, keeping
from tenants.storage.connection import GuardedRedis
from tenants.usage import usage
from tenants.writes import audit
from tenants.writes.writes import Writes, until_committed


class ShareGroups:
    """Share groups over one Redis. All methods raise `StoreUnavailable` while it is down."""

    def __init__(
        self, redis: GuardedRedis, peppers: Peppers, *, audit_max_entries: int = audit.MAX_ENTRIES
    ) -> None:
        self._redis = redis
        self._records = SealedRecords(peppers)
        self._writes = Writes(redis, audit_max_entries)
        self._groups = Owners(redis, self._records, self._writes, ShareGroup)

    async def create(
        self, group_id: str, name: str | None = None, *, actor: str = "system"
    ) -> ShareGroup:
        """A new group without members. Raises `InvalidField` ("id", "name"), `GroupExists`."""
        check_id(group_id)
        group = ShareGroup(
            id=group_id,
            name=group_id if name is None else name,
            namespace_secret=secrets.token_bytes(SECRET_BYTES),
            created_at=time.time(),
        )
        check_name(group.name)
        meta, deleting = redis_keys.meta(group.owner), redis_keys.deleting(group.owner)
        committed = await self._writes.commit(
            [absent(meta), absent(deleting)],
            [
                ("SET", meta, self._records.encode(group)),
                keeping(group),
                ("ZADD", redis_keys.GROUPS, 0, group_id),
            ],
            change_of(group.owner),
            audit.note("group.create", actor, group.owner, None, group),
        )
        if not committed:
            raise GroupExists(group_id)
        return group

    async def list(self, after: str | None = None, limit: int | None = None) -> list[ShareGroup]:
        """Up to `limit` groups by id, from behind the id `after`."""
        return await self._groups.list(after, limit)

    async def ids(self, limit: int) -> builtins.list[str]:
        """Ids of up to `limit` groups."""
        return await self._groups.ids(None, limit)

    async def get(self, group_id: str) -> ShareGroup:
        """Raises `GroupNotFound`."""
        return (await self._groups.read(group_id))[1]

    async def of(self, tenant: Tenant) -> ShareGroup | None:
        """The group that a tenant is in; one that is gone, or was altered, is none."""
        with contextlib.suppress(GroupNotFound, SealError):
            return None if tenant.share_group is None else await self.get(tenant.share_group)
        return None

    async def members(self, group_id: str) -> builtins.list[str]:
        """Ids of the tenants in a group, in order. Raises `GroupNotFound`."""
        group = await self.get(group_id)
        found = await self._redis.execute("SMEMBERS", redis_keys.members(group.owner))
        return _ids(found)

    async def update(
        self, group_id: str, edit: Callable[[ShareGroup], ShareGroup], *, actor: str = "system"
    ) -> ShareGroup:
        """What `edit` makes of a group's name; called again when others come in between.

        Raises `InvalidField` ("name"), `GroupNotFound`.
        """

        def renamed(old: ShareGroup) -> ShareGroup:
            name = edit(old).name
            if name == old.name:
                return old
            check_name(name)
            return replace(old, name=name, revision=old.revision + 1)

        return await self._groups.change(group_id, "update", actor, renamed)

    async def rotate_secret(self, group_id: str, *, actor: str = "system") -> ShareGroup:
        """Give a group another namespace secret, as `TenantStore.rotate_secret` does a tenant.

        Raises `GroupNotFound`, and `StoreConflict` for one with too many former secrets.
        """
        return await self._groups.rotate_secret(group_id, actor)

    async def delete(self, group_id: str, *, actor: str = "system") -> None:
        """Remove a group and its prompts. Raises `GroupNotFound`.

        What was computed of these is charged to those who used them. Raises `StoreConflict` while
        it has members. When this is cut off, calling it again finishes the work.
        """
        await until_committed(lambda: self._begin_delete(group_id, actor))
        owner = f"@{group_id}"
        deleting = redis_keys.deleting(owner)
        blob = await self._redis.execute("GET", deleting)
        group = unless_altered(self._records.group, group_id, blob)
        if group is not None:
            await usage.settle_group(self._redis, owner, int(group.created_at * 1000))
        # Until the end of `deleting` late usage may come, which is not to be the next group's.
        last = (redis_keys.usage(owner), redis_keys.generation(owner), deleting)
        await clear_slot(self._redis, owner, keep=frozenset(last))
        await self._redis.execute("DEL", *last)

    async def _begin_delete(self, group_id: str, actor: str) -> bool:
        """From here on nobody can join the group, nor put a prompt into it."""
        try:
            blob, group = await self._groups.read_to_delete(group_id)
        except GroupNotFound:
            if is_id(group_id) and await self._redis.execute(
                "EXISTS", redis_keys.deleting(f"@{group_id}")
            ):
                await slots.finish(self._redis, f"@{group_id}")
                return True
            raise
        found = await self._redis.execute("SMEMBERS", redis_keys.members(group.owner))
        if found:
            some = ", ".join(_ids(found)[:10])
            raise StoreConflict(f"share group {group_id!r} has members: {some}")
        return await self._writes.commit(
            [holds(redis_keys.meta(group.owner), blob), absent(redis_keys.members(group.owner))],
            [
                ("RENAME", redis_keys.meta(group.owner), redis_keys.deleting(group.owner)),
                ("ZREM", redis_keys.GROUPS, group_id),
            ],
            change_of(group.owner),
            audit.note("group.delete", actor, group.owner, group, None),
        )


def _ids(members: Iterable[bytes]) -> builtins.list[str]:
    return sorted(one.decode(errors="replace") for one in members)
