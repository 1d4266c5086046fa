"""The audit stream: who changed what, from what to what, and when. No secrets are in it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tenants import redis_keys
from tenants.errors import InvalidField
from tenants.records import is_owner
from tenants.storage.connection import Command, GuardedRedis

MAX_ENTRIES = 1_000_000
"""How many entries are kept, roughly."""
UNTRIMMED = 10**12
"""As many are kept where each is to be written elsewhere first."""

_PAGE = 1000
_ENTRY_ID = re.compile(r"[0-9]{1,15}-[0-9]{1,15}")

Document = dict[str, Any]
_HIDDEN = frozenset({"namespace_secret", "former_secrets", "digest", "pepper_id", "tenant_id"})
"""Fields of records: secrets, what finds them, and whose a key is, which `owner` says."""


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
    `tenants.writes.audit_keeping`.
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
