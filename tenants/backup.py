"""All that is kept of tenants, in a file and back.

Texts and secrets in it are sealed as they are in Redis, and the file itself is under the pepper:
it is of use only with that. What holds of requests under way is left out; so are blocks of KV.

Each key is read at once, the whole one after the other: a backup of services that run may have a
tenant's key, say, and not yet its line in the audit.

The file is a head, a record for each key of Redis, an end, and nothing else, each as MessagePack
behind its length. The end has a MAC of all before it, under a key that derives from the pepper
which the head names: who has a backup and not the pepper makes no other of it.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from hashlib import blake2b, sha256
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import Peppers
from tenants.errors import BackupUnusable, PepperMismatch, StoreNotEmpty
from tenants.storage.connection import Command, GuardedRedis
from tenants.storage.schema import SCHEMA

_FORMAT: Final = "partywall-backup-2"
_UNAUTHENTICATED: Final = "partywall-backup-1"
_MOST_FRAME_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 4

_encode = msgspec.msgpack.Encoder().encode
_log = logging.getLogger(__name__)
_EVERYTHING: Final = "pw:*"
_SCAN_COUNT: Final = 100
_STREAM_PAGE: Final = 1000
_PASSING: Final = frozenset(
    {"streams", "held", "settled", "sockets", "running", "claimed", "spending", "usage-batch"}
    | {"adapter-upload"}
)
"""Kinds of keys that tell of requests under way."""
_PASSING_PREFIXES: Final = (
    *("pw:step:", redis_keys.process("")),
    *(redis_keys.PROBE, redis_keys.AUDIT_KEEPER, redis_keys.DEMONSTRATION),
)
_LOOK_UPS: Final = "pw:key:"
_ANSWERS: Final = "pw:idempotency:"
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
    """Of the records (`tenants.storage.schema`)."""
    pepper: bytes = b""
    """Fingerprint of the one that the MAC depends on."""


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
    """The MAC: keyed BLAKE2b of all bytes before."""


_decode = msgspec.msgpack.Decoder(Head | Record | End).decode


class Writer:
    """Writes a file, from its head to its end. Raises `BackupUnusable` for what is too large."""

    def __init__(self, file: BinaryIO, peppers: Peppers) -> None:
        self._file = file
        self._mac = _mac(peppers.current)
        self.count = 0
        """Records so far."""
        self._write(Head(_FORMAT, SCHEMA, peppers.fingerprints[0]))

    def add(self, record: Record) -> None:
        """One more."""
        self._write(record)
        self.count += 1

    def end(self) -> None:
        """Nothing comes behind this."""
        self._write(End(self.count, self._mac.digest()))

    def _write(self, frame: Head | Record | End) -> None:
        data = _encode(frame)
        if len(data) > _MOST_FRAME_BYTES:
            raise BackupUnusable("a key of the store has more than 1 GiB")
        data = len(data).to_bytes(_LENGTH_BYTES) + data
        self._mac.update(data)
        self._file.write(data)


def read_records(file: BinaryIO, peppers: Peppers) -> Iterator[Record]:
    """All of a file's records; only behind the last one it is sure that all are true.

    Raises `BackupUnusable` where it is not whole, or not as it was written, and `PepperMismatch`
    where a pepper that is not known here says what it was.
    """
    pieces = _pieces(file)
    first = next(pieces, b"")
    head = _frame(first)
    if not isinstance(head, Head):
        raise BackupUnusable("the file is no backup, or damaged")
    mac = _mac(_pepper_of(head, peppers))
    mac.update(first)
    for count, data in enumerate(pieces):
        frame = _frame(data)
        if isinstance(frame, End):
            is_true = hmac.compare_digest(frame.digest, mac.digest())
            if frame.records != count or not is_true or file.read(1):
                raise BackupUnusable("the file is not as it was written")
            return
        if isinstance(frame, Head):
            raise BackupUnusable("the file is damaged: it has two heads")
        mac.update(data)
        yield frame
    raise BackupUnusable("the file ends too early")


def _pepper_of(head: Head, peppers: Peppers) -> bytes:
    """The pepper that a file is under. Raises what `read_records` does."""
    if head.format == _UNAUTHENTICATED:
        raise BackupUnusable(
            "the file is an earlier Partywall's, and anybody could have written it: restore it "
            "with that version, and let this one take the store over (partywall store seal)"
        )
    if head.format != _FORMAT:
        raise BackupUnusable("the file is no backup that this Partywall knows")
    if head.schema > SCHEMA:
        raise BackupUnusable(f"the file has records of version {head.schema}: update Partywall")
    if head.pepper not in peppers.fingerprints:
        raise PepperMismatch("what is in the file")
    return peppers.all[peppers.fingerprints.index(head.pepper)]


def _mac(pepper: bytes) -> blake2b:
    return blake2b(key=hmac.digest(pepper, b"partywall backup file", sha256))


def _frame(data: bytes) -> Head | Record | End:
    try:
        frame: Head | Record | End = _decode(data[_LENGTH_BYTES:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise BackupUnusable("the file is no backup, or damaged") from error
    return frame


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


class Without(msgspec.Struct, frozen=True):
    """What a restore leaves out: it was revoked, perhaps, since the backup was made."""

    keys: bool = False
    """API keys of tenants."""
    tokens: bool = False
    """Admin tokens of operators."""

    def leaves_out(self, key: str) -> bool:
        """Whether a key of Redis is not brought back.

        Answers that are kept for who asks a second time may hold either.
        """
        if key.startswith(_ANSWERS):
            return self.keys or self.tokens
        if key == redis_keys.OPERATOR_TOKENS:
            return self.tokens
        return self.keys and (key.startswith(_LOOK_UPS) or _kind(key) == "keys")


EVERYTHING: Final = Without()


class Backup:
    """Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis, peppers: Peppers) -> None:
        self._redis = redis
        self._peppers = peppers

    async def save(self, path: Path) -> int:
        """Write a new file, for its owner alone; the number of keys in it.

        Raises `OSError`, and `BackupUnusable` for a key that is too large; then there is no file.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                writer = Writer(file, self._peppers)
                async for record in self._records():
                    writer.add(record)
                writer.end()
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(path)
            raise
        return writer.count

    async def load(
        self, path: Path, *, replaces: bool = False, without: Without = EVERYTHING
    ) -> int:
        """Have Redis hold what the file has; how many keys that are. No service should run.

        With `replaces` all that is there is removed before. Nothing is changed where this raises
        `BackupUnusable`, `StoreNotEmpty`, `PepperMismatch` or `OSError`; a run that is cut off is
        repeated with `replaces`.
        """
        with path.open("rb") as file:
            self._check(file)
            file.seek(0)
            await self._make_room(removes=replaces)
            count = 0
            for record in read_records(file, self._peppers):
                if not without.leaves_out(record.key):
                    await self._redis.pipeline(*_commands(record))
                    count += 1
        return count

    def _check(self, file: BinaryIO) -> None:
        """Read all of it before anything is changed."""
        used: list[bytes] = []
        for record in read_records(file, self._peppers):
            if redis_keys.type_of(record.key) != record.kind or not _is_kept(record.key):
                raise BackupUnusable(f"the file has {record.key!r}, which is none of Partywall's")
            if record.key == redis_keys.PEPPER:
                used = pepper_record.split(record.values[0][0])
        if not used:
            raise BackupUnusable("the file does not say which pepper its records are under")
        if not set(used) <= set(self._peppers.fingerprints):
            raise PepperMismatch

    async def _make_room(self, *, removes: bool) -> None:
        async for names in self._redis.scan(_EVERYTHING, _SCAN_COUNT):
            found = [name for name in names if _text(name) not in _OF_ANY_STORE]
            if not removes and any(_is_kept(_text(name)) for name in found):
                raise StoreNotEmpty
            if removes and found:
                await self._redis.pipeline(*(("DEL", name) for name in found))

    async def _records(self) -> AsyncIterator[Record]:
        seen: set[bytes] = set()
        async for names in self._redis.scan(_EVERYTHING, _SCAN_COUNT):
            news = [name for name in names if name not in seen]
            seen.update(news)
            for key in filter(_is_kept, map(_text, news)):
                record = await self._record(key)
                if record is not None:
                    yield record

    async def _record(self, key: str) -> Record | None:
        """A key with its value; `None` if it is gone."""
        kind, expires = await self._redis.pipeline(("TYPE", key), ("PEXPIRETIME", key))
        kind = kind.decode() if isinstance(kind, bytes) else kind
        if kind not in ("none", redis_keys.type_of(key)):
            _log.warning("left out of the backup: %s, which no Partywall wrote", key)
            return None
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


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")  # none of ours needs that


def _is_kept(key: str) -> bool:
    return not key.startswith(_PASSING_PREFIXES) and _kind(key) not in _PASSING


def _kind(key: str) -> str | None:
    """What kind of an owner's a key is, if any."""
    try:
        return redis_keys.owner_kind_name(key)[1]
    except ValueError:
        return None


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
