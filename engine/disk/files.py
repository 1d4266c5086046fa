"""A file of kept blocks: a run of blocks of one chain, sealed for who has their namespace's key.

    magic | length of the head | head | sealed block | sealed block | ...

The head is in clear. A block's *name* in it is a keyed hash of the hash by which the block is found
in the pool, so it says nothing of tokens or tenants, and is found with the key alone. All blocks of
a file are of one kind. Each is
sealed by itself with AES-256-GCM. The file's key is derived from the namespace's key and from
random bytes that no other file has, so a block's number will do as its nonce; the head's digest is
authenticated with every block.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engine.blocks.hashing import derive_key

NAME_BYTES: Final = 16
SUFFIX: Final = ".kept"
PART_SUFFIX: Final = ".part"
"""Of a file that is being written, or was when its writer died."""
_MAGIC: Final = b"PWkept1\n"
"""With the version of this layout."""
_LENGTH: Final = struct.Struct("<I")
_MOST_HEAD_BYTES: Final = 16 << 20
_SALT_BYTES: Final = 16
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12

NO_PARENT: Final = bytes(NAME_BYTES)
"""Of a chain's first block."""


class DamagedFile(Exception):
    """The file is none of ours, not whole, or not what was written; the message says which."""


class Head(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a file says of its blocks.

    `layout` identifies what computed them and how their bytes lie. `parent` is the name of the
    block that the first one continues, the chain's block number `depth`, or 0 where that is not
    known. The blocks were leased for `lease_seconds` after each use; 0: they were pinned.
    """

    layout: bytes
    salt: bytes
    parent: bytes
    depth: int
    lease_seconds: float
    block_bytes: int
    names: tuple[bytes, ...]

    @property
    def sealed_bytes(self) -> int:
        """Of one block in the file."""
        return self.block_bytes + _TAG_BYTES

    @property
    def kv_bytes(self) -> int:
        """What its blocks take of memory."""
        return len(self.names) * self.block_bytes


def name_key(namespace_key: bytes) -> bytes:
    """The key of the names of a namespace's blocks."""
    return derive_key(namespace_key, "kept name")


def block_name(key: bytes, block_hash: bytes, kind: int = 0) -> bytes:
    """A block's name, by its namespace's `name_key`; those of other kinds than the first have
    others.
    """
    named = block_hash + bytes([kind]) if kind else block_hash
    return blake2b(named, key=key, digest_size=NAME_BYTES).digest()


def new_salt() -> bytes:
    """What makes a file's key, and its name, its own."""
    return secrets.token_bytes(_SALT_BYTES)


def write_file(
    path: Path,
    head: Head,
    namespace_key: bytes,
    images: Sequence[memoryview],
    times: tuple[float, float],
) -> int:
    """Write a file that is there whole or not at all; returns its size.

    `images` are the blocks, each of `head.block_bytes`; `times` are when they were last used, and
    until when they are kept: the file's times of access and modification. Raises `OSError`.
    """
    packed = msgspec.msgpack.encode(head)
    prefix = _MAGIC + _LENGTH.pack(len(packed)) + packed
    cipher, authenticated = _cipher(namespace_key, head.salt), _digest(prefix)
    part = path.with_suffix(PART_SUFFIX)
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(prefix)
            for number, image in enumerate(images):
                file.write(cipher.encrypt(_nonce(number), image, authenticated))
            file.flush()
            os.fsync(file.fileno())
        os.utime(part, times)
        os.rename(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path.parent)
    return _whole_size(len(prefix), head)


def read_head(path: Path) -> tuple[Head, os.stat_result]:
    """What a file says of itself, if it is as long as it says.

    To look is no use of it. Raises `DamagedFile`, and `OSError` where it cannot be read.
    """
    with open(path, "rb", opener=_without_trace) as file:
        stat = os.fstat(file.fileno())
        head, prefix = _read_prefix(file.read)
    if stat.st_size != _whole_size(len(prefix), head):
        raise DamagedFile("it is not whole")
    return head, stat


def read_blocks(
    path: Path,
    namespace_key: bytes,
    wanted: Sequence[tuple[int, bytes]],
    targets: Sequence[memoryview],
) -> None:
    """Read blocks, given by their numbers and names, each to its target of `block_bytes`.

    Raises `DamagedFile` or `OSError`; then nothing that the targets hold is to be trusted.
    """
    with open(path, "rb", buffering=0, opener=open_file) as file:
        head, prefix = _read_prefix(lambda count: os.read(file.fileno(), count))
        cipher, authenticated = _cipher(namespace_key, head.salt), _digest(prefix)
        sealed = bytearray(head.sealed_bytes)
        for (number, name), target in zip(wanted, targets, strict=True):
            if number >= len(head.names) or head.names[number] != name:
                raise DamagedFile("it holds other blocks")
            if len(target) != head.block_bytes:
                raise DamagedFile("its blocks have another size")
            start = len(prefix) + number * head.sealed_bytes
            if os.preadv(file.fileno(), [sealed], start) != len(sealed):
                raise DamagedFile("it is not whole")
            try:
                cipher.decrypt_into(_nonce(number), sealed, authenticated, target)
            except InvalidTag:
                raise DamagedFile("it was changed, or sealed with another key") from None


def open_file(path: str, flags: int) -> int:
    """An opener that waits for nobody and follows nothing, whatever lies at `path`."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _read_prefix(read: Callable[[int], bytes]) -> tuple[Head, bytes]:
    fixed = read(len(_MAGIC) + _LENGTH.size)
    if len(fixed) != len(_MAGIC) + _LENGTH.size or not fixed.startswith(_MAGIC):
        raise DamagedFile("it has another format")
    (length,) = _LENGTH.unpack(fixed[len(_MAGIC) :])
    packed = read(length) if length <= _MOST_HEAD_BYTES else b""
    if len(packed) != length:
        raise DamagedFile("its head is not whole")
    try:
        head = msgspec.msgpack.decode(packed, type=Head)
    except (msgspec.DecodeError, ValueError):
        raise DamagedFile("its head cannot be read") from None
    is_sound = (
        head.block_bytes > 0
        and head.depth >= 0
        and head.lease_seconds >= 0
        and head.names
        and len(head.parent) == NAME_BYTES
        and all(len(name) == NAME_BYTES for name in head.names)
    )
    if not is_sound:
        raise DamagedFile("its head cannot be right")
    return head, fixed + packed


def _without_trace(path: str, flags: int) -> int:
    """Open a file of one's own so that reading does not change its time of access."""
    return open_file(path, flags | os.O_NOATIME)


def _whole_size(prefix_bytes: int, head: Head) -> int:
    return prefix_bytes + len(head.names) * head.sealed_bytes


def _cipher(namespace_key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(derive_key(namespace_key, "kept file", salt.hex()))


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "little")


def _digest(prefix: bytes) -> bytes:
    return blake2b(prefix, digest_size=32).digest()


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder last."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
