"""Adapters of tenants and share groups: versions, the active one, pins, and who may use them."""

from __future__ import annotations

import asyncio
import builtins
import functools
import operator
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.adapters.check import Checked, FilesCheck
from tenants.adapters.files import AdapterFiles, in_pieces, piece_keys, unlinking
from tenants.adapters.heads import Files, Head, Heads, decoded_head, head_document, with_version
from tenants.adapters.room import MostAdapters, bytes_left, no_limit
from tenants.at_rest.records import decoded
from tenants.at_rest.sealer import PIECE_BYTES
from tenants.errors import AdapterNotFound, AdaptersExceeded, InvalidField
from tenants.keyring import Keyring
from tenants.keys.key_store import CACHE_SECONDS, STALE_SECONDS
from tenants.owners import not_found
from tenants.records import (
    AdapterRecord,
    Change,
    Tenant,
    check_prompt_name,
    is_owner,
    is_prompt_name,
)
from tenants.storage.cache import ReadThroughCache
from tenants.storage.commits import Check, exists, field_holds
from tenants.storage.connection import Command, GuardedRedis
from tenants.writes import audit
from tenants.writes.writes import Writes, until_committed

_VERSION = re.compile(r"[1-9][0-9]{0,14}")


class Adapters:
    """Adapters of all tenants and share groups over one Redis, each under its owner.

    An owner is a tenant's id or a group's `owner`. Everything raises `StoreUnavailable` while Redis
    is down, but for what `get` and `resolve` found or missed in the last `stale_seconds`. A
    version's number is never used twice, even for an adapter that was deleted and put again.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        keyring: Keyring,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        audit_max_entries: int = audit.MAX_ENTRIES,
        most: Callable[[str], Awaitable[MostAdapters]] = no_limit,
    ) -> None:
        """`most` tells how much an owner may have."""
        self._redis = redis
        self._keyring = keyring
        self._files = AdapterFiles(redis, keyring)
        self._writes = Writes(redis, audit_max_entries)
        self._heads = Heads(redis)
        self._most = most
        # Keys: owner, name, version or "".
        self._cache: ReadThroughCache[tuple[str, str, str], AdapterRecord] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=True
        )
        redis.add_listener(self._on_change)

    async def put(
        self,
        owner: str,
        name: str,
        config: bytes,
        weights: AsyncIterable[bytes],
        check: FilesCheck,
        *,
        activate: bool = True,
        actor: str = "system",
    ) -> AdapterRecord:
        """Keep files, while they come, as the newest version of adapter `name`, the active one.

        An adapter's first version is active in any case. What acts as the newest version does makes
        no new one. Raises `InvalidField` ("name", "adapter_config.json"), `TenantNotFound`,
        `GroupNotFound`, `AdaptersExceeded` for more than the owner may have, `StoreConflict` while
        another adapter of it comes, and what `check` raises; then nothing is kept.
        """
        check_prompt_name(name)
        if len(config) > PIECE_BYTES:
            raise InvalidField("adapter_config.json", f"has more than {PIECE_BYTES} bytes")
        if not is_owner(owner):
            raise not_found(owner)
        async with self._files.uploading(owner) as upload:
            most, heads = await self._most(owner), await self._heads.all(owner)
            left = bytes_left(owner, name, most, heads)
            await upload.add(config)
            size = len(config)
            async for piece in in_pieces(weights):
                size += len(piece)
                if left is not None and size > left:
                    raise AdaptersExceeded(
                        f"the adapters of {owner} would take more than its adapter_bytes, of which "
                        f"{left} are left: delete adapters, or have it raised"
                    )
                await asyncio.to_thread(check.feed, piece)
                await upload.add(piece)
            checked = await asyncio.to_thread(check.finish)
            await upload.require()
            files = Files(upload.files, upload.pieces, size)

            async def attempt() -> AdapterRecord | None:
                blob, head = await self._heads.one(owner, name)
                old = head or Head(last=0, active=None)
                record = None if old.active is None else await self._read(owner, name, old.last)
                checks, commands = list[Check](), list[Command]()
                if record is not None and record.digest == checked.digest:
                    new = replace(old, active=old.last) if activate else old
                else:
                    record = _record(owner, name, old.last + 1, files, checked)
                    new = with_version(old, files, activate)
                    checks, commands = upload.keeping()
                    commands = [await self._writing(record), *commands]
                committed = new == old or await self._commit(
                    owner, name, blob, new, actor, "put", commands, checks
                )
                return _shown(record, new) if committed else None

            return await until_committed(attempt)

    async def get(
        self, owner: str, name: str, version: int | str | None = None
    ) -> AdapterRecord | None:
        """A version of an adapter (the active one, unless told otherwise), or `None`."""
        wanted = "" if version is None else str(version)
        possible = version is None or _VERSION.fullmatch(wanted) is not None
        if not (possible and is_owner(owner) and is_prompt_name(name)):
            return None
        load = functools.partial(self._load, owner, name, wanted)
        return await self._cache.get((owner, name, wanted), load)

    async def resolve(self, tenant: Tenant, name: str) -> AdapterRecord | None:
        """The active version of the adapter that a tenant means by a name: its own, or else that of
        its share group.

        Nothing of any other owner is looked at, so that neither answer nor time can tell of it.
        """
        own = await self.get(tenant.id, name)
        if own is not None or tenant.share_group is None:
            return own
        return await self.get(f"@{tenant.share_group}", name)

    async def read_config(self, adapter: AdapterRecord) -> bytes:
        """The bytes of `adapter_config.json`. Raises `AdapterNotFound` where it was deleted."""
        return await self._files.config(adapter)

    def read_weights(self, adapter: AdapterRecord) -> AsyncIterator[bytes]:
        """The bytes of `adapter_model.safetensors`, `PIECE_BYTES` at a time.

        Raises `AdapterNotFound`, also on the way, where it was deleted.
        """
        return self._files.tensors(adapter)

    async def list(
        self, owner: str, after: str | None = None, limit: int | None = None
    ) -> list[AdapterRecord]:
        """Each of an owner's adapters in its active version, by name: `limit` behind `after`."""
        heads = await self._heads.all(owner)
        found = []
        for name, head in sorted(heads.items(), key=operator.itemgetter(0)):
            if head.active is None or (after is not None and name <= after):
                continue
            record = await self._read(owner, name, head.active)
            if record is not None:  # deleted a moment ago
                found.append(_shown(record, head))
            if len(found) == limit:
                break
        return found

    async def versions(
        self, owner: str, name: str, before: int | None = None, limit: int | None = None
    ) -> builtins.list[AdapterRecord]:
        """An adapter's versions, the newest first: `limit` older than `before`.

        Raises `AdapterNotFound`.
        """
        head = (await self._heads.live(owner, name))[1]
        older = (number for number in head.versions if before is None or number < before)
        page = sorted(older, reverse=True)[:limit]
        records = [await self._read(owner, name, number) for number in page]
        return [_shown(one, head) for one in records if one is not None]

    async def activate(
        self, owner: str, name: str, version: int, *, actor: str = "system"
    ) -> AdapterRecord:
        """Make a version the one that is meant by the name. Raises `AdapterNotFound`."""

        def activated(head: Head) -> Head:
            if version not in head.versions:
                raise AdapterNotFound(name, version)
            return replace(head, active=version)

        return await self._update(owner, name, activated, actor, "activate")

    async def set_pinned(
        self, owner: str, name: str, pinned: bool, *, actor: str = "system"
    ) -> AdapterRecord:
        """Keep the adapter's active version in memory, or no longer. Raises `AdapterNotFound`."""
        action = "pin" if pinned else "unpin"
        return await self._update(
            owner, name, lambda head: replace(head, pinned=pinned), actor, action
        )

    async def delete(self, owner: str, name: str, *, actor: str = "system") -> None:
        """Remove an adapter in all its versions. Raises `AdapterNotFound`."""

        async def attempt() -> bool:
            blob, head = await self._heads.live(owner, name)
            records = [redis_keys.adapter(owner, name, number) for number in head.versions]
            pieces = [
                key
                for one in head.versions.values()
                for key in piece_keys(owner, one.files, one.pieces)
            ]
            gone = Head(last=head.last, active=None)
            return await self._commit(
                owner, name, blob, gone, actor, "delete", unlinking([*records, *pieces])
            )

        await until_committed(attempt)

    async def _read(self, owner: str, name: str, version: int) -> AdapterRecord | None:
        key = redis_keys.adapter(owner, name, version)
        blob = await self._redis.execute("GET", key)
        content = None if blob is None else await self._keyring.open(owner, blob, key)
        return None if content is None else decoded(content, AdapterRecord, key)

    async def _writing(self, record: AdapterRecord) -> Command:
        key = redis_keys.adapter(record.owner, record.name, record.version)
        sealed = await self._keyring.seal(record.owner, msgspec.msgpack.encode(record), key)
        if sealed is None:
            raise not_found(record.owner)
        return ("SET", key, sealed)

    async def _update(
        self, owner: str, name: str, edit: Callable[[Head], Head], actor: str, action: str
    ) -> AdapterRecord:
        async def attempt() -> AdapterRecord | None:
            blob, head = await self._heads.live(owner, name)
            new = edit(head)
            assert new.active is not None
            record = await self._read(owner, name, new.active)
            if record is None:
                raise AdapterNotFound(name, new.active)
            committed = new == head or await self._commit(owner, name, blob, new, actor, action, [])
            return _shown(record, new) if committed else None

        return await until_committed(attempt)

    async def _commit(
        self,
        owner: str,
        name: str,
        blob: bytes | None,
        new: Head,
        actor: str,
        action: str,
        commands: Sequence[Command],
        checks: Sequence[Check] = (),
    ) -> bool:
        """Write an adapter's new head, unless somebody else did since `blob` was read."""
        place, old = redis_keys.adapters(owner), decoded_head(owner, name, blob)
        return await self._writes.commit(
            [exists(redis_keys.meta(owner)), field_holds(place, name, blob), *checks],
            [("HSET", place, name, msgspec.msgpack.encode(new)), *commands],
            Change(kind="adapters", tenant_id=owner, name=name),
            audit.Note(
                actor=actor,
                action=f"adapter.{action}",
                owner=owner,
                target=name,
                before=head_document(old),
                after=head_document(new),
            ),
        )

    async def _load(self, owner: str, name: str, version: str) -> AdapterRecord | None:
        _, head = await self._heads.one(owner, name)
        if head is None or head.active is None:
            return None
        record = await self._read(owner, name, int(version) if version else head.active)
        return None if record is None else _shown(record, head)

    def _on_change(self, change: Change) -> None:
        if change.kind == "resync":
            self._cache.expire()
        elif change.kind in ("deleted", "adapters", "group"):
            owner = f"@{change.name}" if change.kind == "group" else change.tenant_id
            self._cache.drop_if(lambda key, _: key[0] == owner)


def _record(owner: str, name: str, version: int, files: Files, checked: Checked) -> AdapterRecord:
    return AdapterRecord(
        owner=owner,
        name=name,
        version=version,
        digest=checked.digest,
        num_bytes=checked.num_bytes,
        rank=checked.rank,
        targets=checked.modules,
        invocation=checked.invocation,
        created_at=time.time(),
        files=files.files,
        pieces=files.pieces,
    )


def _shown(record: AdapterRecord, head: Head) -> AdapterRecord:
    return replace(record, active=record.version == head.active, pinned=head.pinned)
