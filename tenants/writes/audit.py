"""The audit stream: who changed what, from what to what, and when. No secrets are in it.

It is written to a file first, if there is one, and has room for everybody: where there are more
entries than are kept, those go that are the oldest of the owners that have the most; whoever writes
much pushes nobody's lines out but their own. Of all processes over one Redis one does this at a
time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tenants import redis_keys
from tenants.errors import InvalidField, StoreUnavailable
from tenants.records import is_owner
from tenants.storage.connection import Command, GuardedRedis, Script

MAX_ENTRIES = 1_000_000
"""How many entries are kept, roughly."""
UNTRIMMED = 10**12
"""As many are kept where each is to be written elsewhere first."""

_PAGE = 1000
_ENTRY_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,15}")

Document = dict[str, Any]
_HIDDEN = frozenset({"namespace_secret", "former_secrets", "digest", "pepper_id", "tenant_id"})
"""Fields of records: secrets, what finds them, and whose a key is, which `owner` says."""

_log = logging.getLogger(__name__)
_SECONDS: Final = 1.0
_TRIM_SECONDS: Final = 10.0
_LEASE_MILLISECONDS: Final = 15_000
_KEPT_PAGE: Final = 500
_ID: Final = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")

# KEYS: the lease. ARGV: who wants it, milliseconds. Gives 1 to who has it.
_HOLD = Script("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")
Entries = list[tuple[bytes, dict[bytes, bytes]]]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer has to say of its write; `owner` and `target` say to what it was done."""

    actor: str
    action: str
    owner: str
    target: str = ""
    before: Document | None = None
    after: Document | None = None


def note(
    action: str,
    actor: str,
    owner: str,
    before: msgspec.Struct | None,
    after: msgspec.Struct | None,
    target: str = "",
) -> Note:
    """Of a write that makes one record of another, without what is hidden of these."""
    return Note(
        actor=actor,
        action=action,
        owner=owner,
        target=target,
        before=_shown(before),
        after=_shown(after),
    )


def _shown(record: msgspec.Struct | None) -> Document | None:
    if record is None:
        return None
    document: Document = msgspec.to_builtins(record)
    return {name: value for name, value in document.items() if name not in _HIDDEN}


class AuditEntry(Note, frozen=True, kw_only=True):
    """A write that happened. `id` orders the entries and is the cursor of a reader.

    `owner` is a tenant's id or a share group's owner name, empty for an operator's token; `target`
    the key, prompt or token that was written, if it was not the owner itself. `at` is in Unix
    seconds, by the clock of the store.
    """

    id: str
    at: float


def appending(note: Note, max_entries: int = MAX_ENTRIES) -> Command:
    """The command that appends an entry.

    Only what is twice as much as is kept goes at once: a service picks with care, see
    `AuditKeeper`.
    """
    fields = (
        *("actor", note.actor),
        *("action", note.action),
        *("owner", note.owner),
        *("target", note.target),
        *("before", msgspec.json.encode(note.before)),
        *("after", msgspec.json.encode(note.after)),
    )
    return ("XADD", redis_keys.AUDIT, "MAXLEN", "~", 2 * max_entries, "*", *fields)


class Audit:
    """Reads the audit stream. Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis) -> None:
        self._redis = redis

    async def read(
        self,
        *,
        before: str | None = None,
        after: str | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Up to `limit` entries: the newest first, or with `after` those behind it, oldest first.

        `before` and `after` are ids of entries, and exclude each other; `owner` picks a tenant's or
        a group's. Raises `InvalidField` ("before", "after", "limit").
        """
        if before is not None and after is not None:
            raise InvalidField("after", "not together with before")
        for field, cursor in (("before", before), ("after", after)):
            if cursor is not None and not _ENTRY_ID.fullmatch(cursor):
                raise InvalidField(field, "the id of an entry")
        if limit < 1:
            raise InvalidField("limit", "at least 1")
        if owner is not None and not is_owner(owner):
            return []
        if after is not None:
            return await self._scan("XRANGE", f"({after}", "+", owner, limit)
        if before is not None and not before.strip("0-"):
            return []  # nothing is older; Redis takes this for a mistake
        start = "+" if before is None else f"({before}"
        return await self._scan("XREVRANGE", start, "-", owner, limit)

    async def _scan(
        self, command: str, start: str, end: str, owner: str | None, limit: int
    ) -> list[AuditEntry]:
        found: list[AuditEntry] = []
        page = limit if owner is None else max(limit, _PAGE)
        while True:
            replies = await self._redis.execute(
                command, redis_keys.AUDIT, start, end, "COUNT", page
            )
            found += [
                decode_entry(entry_id, fields)
                for entry_id, fields in replies
                if owner is None or fields.get(b"owner") == owner.encode()
            ]
            if len(found) >= limit or len(replies) < page:
                return found[:limit]
            start = f"({replies[-1][0].decode()}"


def decode_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> AuditEntry:
    """An entry as the stream has it."""
    text = {one.decode(errors="replace"): fields[one].decode(errors="replace") for one in fields}
    return AuditEntry(
        id=entry_id.decode(),
        at=int(entry_id.partition(b"-")[0]) / 1000,
        actor=text.get("actor", ""),
        action=text.get("action", ""),
        owner=text.get("owner", ""),
        target=text.get("target", ""),
        before=_decode_document(text.get("before", "null")),
        after=_decode_document(text.get("after", "null")),
    )


def _decode_document(text: str) -> Document | None:
    """One of an entry; what is none, as nobody here wrote it, is shown as it stands."""
    try:
        return msgspec.json.decode(text, type=Document | None)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {"unreadable": text}


class AuditKeeper:
    """Keeps about `max_entries`. With a `file` each is appended to it as a line of JSON, once it
    is there for good, before it may go; after a crash some may be there twice, with one id.
    """

    def __init__(self, redis: GuardedRedis, max_entries: int, file: Path | None = None) -> None:
        self._redis = redis
        self._max_entries = max_entries
        self._file = file
        self._name = secrets.token_hex(8)

    async def run(self) -> None:
        """Write and trim until cancelled. Raises `OSError` where the file takes no lines."""
        trim_at = 0.0
        while True:
            try:
                if await self._is_mine():
                    await self.write_out()
                    if time.monotonic() >= trim_at:
                        trim_at = time.monotonic() + _TRIM_SECONDS
                        await self.trim()
            except StoreUnavailable as error:
                _log.debug("the audit is kept later: %s", error)
            await asyncio.sleep(_SECONDS)

    async def write_out(self) -> None:
        """Append to the file what it does not have. Raises `OSError`, `StoreUnavailable`."""
        if self._file is None:
            return
        written = await self._written()
        async for entries in self._pages("-" if written is None else f"({written}"):
            lines = b"".join(map(_line, entries))
            await asyncio.to_thread(_append, self._file, lines)
            await self._redis.execute("SET", redis_keys.AUDIT_WRITTEN, entries[-1][0])
            await self._is_mine()

    async def trim(self) -> None:
        """Let go of entries beyond `max_entries`, unless they are to be written and are not yet.

        Raises `StoreUnavailable`.
        """
        length = int(await self._redis.execute("XLEN", redis_keys.AUDIT))
        if length <= self._max_entries + self._max_entries // 10:
            return
        written = await self._written()
        if written is None and self._file is not None:
            return
        end = written or "+"
        counts: Counter[bytes] = Counter()
        async for entries in self._pages("-", end):
            counts.update(map(_owner, entries))
        # What is not written yet takes of the room as well.
        unwritten = max(0, length - counts.total())
        excess = beyond(counts, max(0, self._max_entries - unwritten))
        async for entries in self._pages("-", end):
            await self._let_go(entries, excess)
            if not excess:
                return
            await self._is_mine()

    async def _written(self) -> str | None:
        """The last entry that is in a file; `None` where none is known to be.

        What is no entry's id, or is beyond all of them, nobody here has written: it must not keep
        entries from the file.
        """
        written, newest = await self._redis.pipeline(
            ("GET", redis_keys.AUDIT_WRITTEN), ("XREVRANGE", redis_keys.AUDIT, "+", "-", "COUNT", 1)
        )
        if written is None or not newest:
            return None
        if not _ID.fullmatch(written) or _order(written) > _order(newest[0][0]):
            _log.error("%s is no entry of the audit", redis_keys.AUDIT_WRITTEN)
            return None
        return str(written.decode())

    async def _let_go(self, entries: Entries, excess: dict[bytes, int]) -> None:
        doomed = []
        for entry in entries:
            owner = _owner(entry)
            if owner in excess:
                doomed.append(entry[0])
                excess[owner] -= 1
                if not excess[owner]:
                    del excess[owner]
        if doomed:
            await self._redis.execute("XDEL", redis_keys.AUDIT, *doomed)

    async def _pages(self, start: str, end: str = "+") -> AsyncIterator[Entries]:
        while True:
            entries: Entries = await self._redis.execute(
                "XRANGE", redis_keys.AUDIT, start, end, "COUNT", _KEPT_PAGE
            )
            if not entries:
                return
            yield entries
            start = f"({entries[-1][0].decode()}"

    async def _is_mine(self) -> bool:
        return bool(
            await self._redis.run_script(
                _HOLD, [redis_keys.AUDIT_KEEPER], [self._name, _LEASE_MILLISECONDS]
            )
        )


def beyond(counts: Mapping[bytes, int], most: int) -> dict[bytes, int]:
    """How many entries each owner has beyond its part of `most`: what those with fewer leave is
    shared by the others alike.
    """
    left, excess = most, {}
    for index, (owner, count) in enumerate(sorted(counts.items(), key=lambda one: one[1])):
        kept = min(count, left // (len(counts) - index))
        left -= kept
        if count > kept:
            excess[owner] = count - kept
    return excess


def _order(entry_id: bytes) -> tuple[int, ...]:
    """What ids are compared by."""
    return tuple(map(int, entry_id.split(b"-")))


def _owner(entry: tuple[bytes, dict[bytes, bytes]]) -> bytes:
    """Whose an entry is; what no Partywall wrote may say nothing of it."""
    return entry[1].get(b"owner", b"")


def _line(entry: tuple[bytes, dict[bytes, bytes]]) -> bytes:
    document: dict[str, Any] = msgspec.to_builtins(decode_entry(*entry))
    return msgspec.json.encode(document) + b"\n"


def _append(file: Path, lines: bytes) -> None:
    """Have lines be there for good. Whoever rotates the file may do so at any time."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        while lines:
            lines = lines[os.write(fd, lines) :]
        os.fsync(fd)
    finally:
        os.close(fd)
