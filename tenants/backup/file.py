"""The file that a backup is: a head, a record for each key of Redis, an end, and nothing else.

Each is MessagePack behind its length. The end has a MAC of all before it, under a key that derives
from the pepper which the head names: who has a backup and not the pepper makes no other of it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from hashlib import blake2b, sha256
from typing import BinaryIO, Final

import msgspec

from tenants.at_rest.pepper import Peppers
from tenants.errors import BackupUnusable, PepperMismatch
from tenants.storage.schema import SCHEMA

_FORMAT: Final = "partywall-backup-2"
_UNAUTHENTICATED: Final = "partywall-backup-1"
_MOST_FRAME_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 4


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


_encode = msgspec.msgpack.Encoder().encode
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
