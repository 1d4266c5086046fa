"""All that is kept of tenants, in a file and back.

The file is a head, a record for each key of Redis, and an end with their number and digest, each in
MessagePack behind its length. Texts and secrets in it are sealed as they are in Redis: it is of use
only with the pepper. What holds of requests under way is left out; so are blocks of KV.

Each key is read at once, the whole one after the other: a backup of services that run may have a
tenant's key, say, and not yet its line in the audit.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tenants import redis_keys
from tenants.connection import Command, GuardedRedis
from tenants.errors import BackupUnusable, PepperMismatch, StoreNotEmpty
from tenants.pepper import Peppers
from tenants.schema import SCHEMA

_EVERYTHING: Final = "pw:*"
_SCAN_COUNT: Final = 100
_STREAM_PAGE: Final = 1000
_MOST_FRAME_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 4
_FINGERPRINT_BYTES: Final = 32
_PASSING: Final = frozenset(
    {"streams", "held", "settled", "sockets", "running", "claimed", "spending", "usage-batch"}
)
"""Kinds of keys that tell of requests under way."""
_PASSING_PREFIXES: Final = ("pw:step:", redis_keys.process(""), redis_keys.PROBE)
_OF_ANY_STORE: Final = (redis_keys.PEPPER, redis_keys.SCHEMA)
"""Whoever opens a store leaves these there."""
_SINGLE: Final[Mapping[str, Callable[[str], Command]]] = {
    "string": lambda key: ("GET", key),
    "hash": lambda key: ("HGETALL", key),
    "set": lambda key: ("SMEMBERS", key),
    "zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
}


class Head(msgspec.Struct, frozen=True, tag=True):
    """What comes first."""

    format: str
    schema: int
    """Of the records (`tenants.schema`)."""


class Record(msgspec.Struct, frozen=True, tag=True):
    """A key with what is under it."""

    key: str
    kind: str
    values: list[list[bytes]]
    """Of a hash names with values, of a sorted set members with scores, of a stream ids with
    fields; else single ones."""
    expires_at_ms: int | None
    """Of the UNIX epoch."""


class End(msgspec.Struct, frozen=True, tag=True):
    """What comes last."""

    records: int
    digest: bytes
    """BLAKE2b of all bytes before."""


_FORMAT: Final = "partywall-backup-1"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Head | Record | End).decode


class Backup:
    """Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis, peppers: Peppers) -> None:
        self._redis = redis
        self._peppers = peppers

    async def save(self, path: Path) -> int:
        """Write a new file, for its owner alone; the number of keys in it.

        Raises `OSError`, and `BackupUnusable` for a key that is too large; then there is no file.
        """
        digest, count = blake2b(), 0

        def write(frame: Head | Record | End) -> None:
            data = _encode(frame)
            if len(data) > _MOST_FRAME_BYTES:
                raise BackupUnusable("a key of the store has more than 1 GiB")
            data = len(data).to_bytes(_LENGTH_BYTES) + data
            digest.update(data)
            file.write(data)

        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(Head(_FORMAT, SCHEMA))
                async for record in self._records():
                    write(record)
                    count += 1
                write(End(count, digest.digest()))
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(path)
            raise
        return count

    async def load(self, path: Path, *, replaces: bool = False) -> int:
        """Have Redis hold what the file has; the number of its keys. No service should run.

        With `replaces` all that is there is removed before. Nothing is changed where this raises
        `BackupUnusable`, `StoreNotEmpty`, `PepperMismatch` or `OSError`; a run that is cut off is
        repeated with `replaces`.
        """
        with path.open("rb") as file:
            self._check(file)
            file.seek(0)
            await self._make_room(removes=replaces)
            count = 0
            for frame in _frames(file):
                if isinstance(frame, Record):
                    await self._redis.pipeline(*_commands(frame))
                    count += 1
        return count

    def _check(self, file: BinaryIO) -> None:
        """Read all of it before anything is changed."""
        for frame in _frames(file):
            if isinstance(frame, Record) and frame.key == redis_keys.PEPPER:
                stored = frame.values[0][0]
                size = _FINGERPRINT_BYTES
                used = {stored[at : at + size] for at in range(0, len(stored), size)}
                if not used <= set(self._peppers.fingerprints):
                    raise PepperMismatch

    async def _make_room(self, *, removes: bool) -> None:
        async for names in self._redis.scan(_EVERYTHING, _SCAN_COUNT):
            found = [name for name in names if name.decode() not in _OF_ANY_STORE]
            if not removes and any(_is_kept(name.decode()) for name in found):
                raise StoreNotEmpty
            if removes and found:
                await self._redis.pipeline(*(("DEL", name) for name in found))

    async def _records(self) -> AsyncIterator[Record]:
        seen: set[bytes] = set()
        async for names in self._redis.scan(_EVERYTHING, _SCAN_COUNT):
            news = [name for name in names if name not in seen and _is_kept(name.decode())]
            seen.update(news)
            for name in news:
                record = await self._record(name.decode())
                if record is not None:
                    yield record

    async def _record(self, key: str) -> Record | None:
        """A key with its value; `None` if it is gone."""
        kind, expires = await self._redis.pipeline(("TYPE", key), ("PEXPIRETIME", key))
        kind = kind.decode() if isinstance(kind, bytes) else kind
        values = await self._values(key, kind)
        return Record(key, kind, values, None if expires < 0 else expires) if values else None

    async def _values(self, key: str, kind: str) -> list[list[bytes]]:
        if kind == "none":
            return []
        if kind == "stream":
            return await self._entries(key)
        value = await self._redis.execute(*_SINGLE[kind](key))
        if isinstance(value, dict):
            return [[name, one] for name, one in value.items()]
        if kind == "zset":
            return [list(pair) for pair in zip(value[::2], value[1::2], strict=True)]
        if kind == "set":
            return [[member] for member in value]
        return [] if value is None else [[value]]

    async def _entries(self, key: str) -> list[list[bytes]]:
        entries: list[list[bytes]] = []
        start = "-"
        while True:
            page = await self._redis.execute("XRANGE", key, start, "+", "COUNT", _STREAM_PAGE)
            for entry, fields in page:
                entries.append([entry, *(part for field in fields.items() for part in field)])
            if len(page) < _STREAM_PAGE:
                return entries
            start = f"({page[-1][0].decode()}"


def _is_kept(key: str) -> bool:
    if key.startswith(_PASSING_PREFIXES):
        return False
    try:
        _, kind, _ = redis_keys.owner_kind_name(key)
    except ValueError:
        return True
    return kind not in _PASSING


def _commands(record: Record) -> Iterator[Command]:
    """That make it what it was."""
    key = record.key
    yield "DEL", key
    match record.kind:
        case "string":
            yield "SET", key, record.values[0][0]
        case "hash":
            yield "HSET", key, *(part for pair in record.values for part in pair)
        case "set":
            yield "SADD", key, *(member for [member] in record.values)
        case "zset":
            yield "ZADD", key, *(part for pair in record.values for part in reversed(pair))
        case _:
            for entry, *fields in record.values:
                yield "XADD", key, entry, *fields
    if record.expires_at_ms is not None:
        yield "PEXPIREAT", key, record.expires_at_ms


def _frames(file: BinaryIO) -> Iterator[Head | Record]:
    """All of a file but its end. Raises `BackupUnusable` where it is not whole."""
    digest = blake2b()
    for count, data in enumerate(_pieces(file)):
        try:
            frame = _decode(data[_LENGTH_BYTES:])
        except msgspec.MsgspecError as error:
            raise BackupUnusable("the file is no backup, or damaged") from error
        is_head = isinstance(frame, Head)
        if is_head != (not count) or (is_head and frame.format != _FORMAT):
            raise BackupUnusable("the file is no backup, or damaged")
        if isinstance(frame, Head) and frame.schema > SCHEMA:
            raise BackupUnusable(
                f"the file has records of version {frame.schema}: update Partywall"
            )
        if isinstance(frame, End):
            if (frame.records, frame.digest) != (count - 1, digest.digest()) or file.read(1):
                raise BackupUnusable("the file is damaged")
            return
        digest.update(data)
        yield frame
    raise BackupUnusable("the file ends too early")


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Frames with their lengths."""
    while head := file.read(_LENGTH_BYTES):
        size = int.from_bytes(head)
        if size > _MOST_FRAME_BYTES:
            raise BackupUnusable("the file is no backup, or damaged")
        data = file.read(size)
        if len(head) < _LENGTH_BYTES or len(data) < size:
            raise BackupUnusable("the file ends too early")
        yield head + data
