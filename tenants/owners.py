"""What tenants and share groups have in common: a record by an id, listed, and a slot of Redis."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic

from tenants import redis_keys
from tenants.at_rest.records import SealedRecords, unless_altered
from tenants.errors import GroupNotFound, InvalidField, SealBroken, StoreError, TenantNotFound
from tenants.records import SECRET_BYTES, Change, Rotated, ShareGroup, is_id, with_new_secret
from tenants.storage.commits import Check, holds
from tenants.storage.connection import Command, GuardedRedis
from tenants.writes import audit
from tenants.writes.writes import Writes, until_committed

_log = logging.getLogger(__name__)
Beside = Callable[[Rotated, Rotated], Awaitable[tuple[Sequence[Check], Sequence[Command]]]]
"""What a change of a record needs besides, and does."""
_SCAN_COUNT = 1000
_UNBOUNDED_PAGE = 1000


def not_found(owner: str) -> StoreError:
    """The error that says that `owner` is not there."""
    if owner.startswith("@"):
        return GroupNotFound(owner.removeprefix("@"))
    return TenantNotFound(owner)


def change_of(owner: str) -> Change:
    """The notice that an owner's record was written."""
    if owner.startswith("@"):
        return Change(kind="group", name=owner.removeprefix("@"))
    return Change(kind="tenant", tenant_id=owner)


class Owners(Generic[Rotated]):
    """The records of all tenants, or of all share groups. Raises `StoreUnavailable`.

    What is read raises `TenantNotFound` or `GroupNotFound`.
    """

    def __init__(
        self, redis: GuardedRedis, records: SealedRecords, writes: Writes, kind: type[Rotated]
    ) -> None:
        self._redis = redis
        self._records = records
        self._writes = writes
        self._kind: type[Rotated] = kind
        is_group = kind is ShareGroup
        self._prefix = "@" if is_group else ""
        self._directory = redis_keys.GROUPS if is_group else redis_keys.TENANTS
        self._word = "group" if is_group else "tenant"
        opened: Any = records.group if is_group else records.tenant
        self._opened: Callable[[str, bytes], Rotated] = opened
        """Of the record with an id as it is stored: never one of the other kind."""

    async def read(self, record_id: str) -> tuple[bytes, Rotated]:
        """A record, with how it is stored."""
        blob = await self._blob(record_id)
        return blob, self._opened(record_id, blob)

    async def read_to_delete(self, record_id: str) -> tuple[bytes, Rotated]:
        """As `read`, but for a record that was altered: it can be deleted, too."""
        blob = await self._blob(record_id)
        try:
            return blob, self._opened(record_id, blob)
        except SealBroken as error:
            _log.error("a %s is deleted whose record is not read: %s", self._word, error)
            nothing = self._kind(id=record_id, name=record_id, namespace_secret=b"", created_at=0)
            return blob, nothing

    async def ids(self, after: str | None, limit: int) -> list[str]:
        """Ids behind `after`, up to `limit`. Raises `InvalidField` ("after")."""
        return [_decoded(one) for one in await self._names(_behind(after), limit)]

    async def list(self, after: str | None, limit: int | None) -> list[Rotated]:
        """Those behind the id `after`, up to `limit`. Raises `InvalidField` ("after").

        One whose record was altered is left out, and the log says so.
        """
        start: bytes | str = _behind(after)
        found: list[Rotated] = []
        while limit is None or len(found) < limit:
            count = _UNBOUNDED_PAGE if limit is None else limit - len(found)
            names = await self._names(start, count)
            if not names:
                break
            ids = [_decoded(one) for one in names]
            blobs = await self._redis.pipeline(*(("GET", self._key(one)) for one in ids))
            # One that was deleted a moment ago leaves a gap, which the next round fills.
            read = (unless_altered(self._opened, *one) for one in zip(ids, blobs, strict=True))
            found += [record for record in read if record is not None]
            start = b"(" + names[-1]
        return found

    async def change(
        self,
        record_id: str,
        action: str,
        actor: str,
        edit: Callable[[Rotated], Rotated],
        beside: Beside[Rotated] | None = None,
    ) -> Rotated:
        """What `edit` makes of a record; called again when others come in between.

        Nothing is written where it is the same.
        """

        async def attempt() -> Rotated | None:
            blob, old = await self.read(record_id)
            new = edit(old)
            if new == old:
                return old
            key = redis_keys.meta(old.owner)
            checks: Sequence[Check] = ()
            commands: Sequence[Command] = ()
            if beside is not None:
                checks, commands = await beside(old, new)
            committed = await self._writes.commit(
                [holds(key, blob), *checks],
                [("SET", key, self._records.encode(new)), *commands],
                change_of(old.owner),
                audit.note(f"{self._word}.{action}", actor, old.owner, old, new),
            )
            return new if committed else None

        return await until_committed(attempt)

    async def rotate_secret(self, record_id: str, actor: str) -> Rotated:
        """Give a record another namespace secret. Raises `StoreConflict` where it had too many."""
        return await self.change(
            record_id,
            "rotate_secret",
            actor,
            lambda old: with_new_secret(old, secrets.token_bytes(SECRET_BYTES), time.time()),
        )

    async def _names(self, start: bytes | str, count: int) -> Sequence[bytes]:
        directory = self._directory
        names: Sequence[bytes] = await self._redis.execute(
            "ZRANGE", directory, start, "+", "BYLEX", "LIMIT", 0, count
        )
        return names

    def _key(self, record_id: str) -> str:
        return redis_keys.meta(f"{self._prefix}{record_id}")

    async def _blob(self, record_id: str) -> bytes:
        blob = await self._redis.execute("GET", self._key(record_id)) if is_id(record_id) else None
        if blob is None:
            raise GroupNotFound(record_id) if self._prefix else TenantNotFound(record_id)
        return bytes(blob)


def _behind(after: str | None) -> str:
    """Where a part of the list begins. Raises `InvalidField` ("after")."""
    if after is not None and not is_id(after):
        raise InvalidField("after", "no id that this list could hold")
    return "-" if after is None else f"({after}"


def _decoded(name: bytes) -> str:
    return name.decode(errors="replace")  # what is no id is nobody's


async def clear_slot(redis: GuardedRedis, owner: str, keep: frozenset[str]) -> None:
    """Remove all that lies in an owner's slot but for `keep`.

    Whatever was there when the owner's `meta` went is seen by one full scan.
    """
    kept = {key.encode() for key in keep}
    async for names in redis.scan(redis_keys.everything_of(owner), _SCAN_COUNT):
        doomed = [name for name in names if name not in kept]
        if doomed:
            await redis.execute("UNLINK", *doomed)
