"""Keeps the audit: written to a file first, and with room for everybody.

Where there are more entries than are kept, those go that are the oldest of the owners that have the
most: whoever writes much pushes nobody's lines out but their own. Of all processes over one Redis
one does this at a time.
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
from tenants.errors import StoreUnavailable
from tenants.storage.connection import GuardedRedis, Script
from tenants.writes.audit import decode_entry

_log = logging.getLogger(__name__)
_SECONDS: Final = 1.0
_TRIM_SECONDS: Final = 10.0
_LEASE_MILLISECONDS: Final = 15_000
_PAGE: Final = 500
_ID: Final = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")

# KEYS: the lease. ARGV: who wants it, milliseconds. Gives 1 to who has it.
_HOLD = Script("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")

Entries = list[tuple[bytes, dict[bytes, bytes]]]


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
            ("GET", redis_keys.AUDIT_WRITTEN),
            ("XREVRANGE", redis_keys.AUDIT, "+", "-", "COUNT", 1),
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
                "XRANGE", redis_keys.AUDIT, start, end, "COUNT", _PAGE
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
