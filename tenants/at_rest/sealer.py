"""Encryption of one record, bound to where it lies, under a key that the record names."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenants.errors import SealBroken, SealMissing, SealUnknown

_MARK = b"\xc1\x01"
"""What a sealed record begins with: no MessagePack and no JSON does. The second byte is the version
of what follows."""
_KEY_ID_BYTES = 8
_NONCE_BYTES = 12
_TAG_BYTES = 16
_KEY_BYTES = 32
HEAD_BYTES = len(_MARK) + _KEY_ID_BYTES + _NONCE_BYTES
"""What no two sealed records have in common: mark, key id and nonce."""
OVERHEAD_BYTES = HEAD_BYTES + _TAG_BYTES
PIECE_BYTES = (1 << 20) - OVERHEAD_BYTES
"""What is long is kept in such pieces: sealed, a value of Redis has 1 MiB at most."""
_STEP_BYTES = 1 << 20
"""So much is encrypted in about a millisecond; then others have their turn."""


class Sealer:
    """Seals under the newest of some secrets, and opens what was sealed under any of them.

    A sealed record is a mark, the id of its key, a nonce, and what AES-256-GCM (NIST SP 800-38D)
    makes of the content; key and id are derived from the secret by HKDF (RFC 5869). Under one
    secret 2**32 records can be sealed with nonces drawn at random.
    """

    def __init__(self, purpose: str, newest: bytes, *others: bytes) -> None:
        derived = [_derived(purpose, secret) for secret in (newest, *others)]
        self._keys = dict(derived)
        self._newest = derived[0][0]

    def seal(self, content: bytes, *place: str) -> bytes:
        """`content` as it may lie at `place`, and nowhere else."""
        return b"".join(self._seal(content, place))

    def open(self, record: bytes, *place: str) -> bytes:
        """The content of a record that lies at `place`.

        Raises `SealUnknown`, `SealMissing` for one in clear, and `SealBroken` for one that was
        altered, or lay at another place.
        """
        return b"".join(self._open(record, place))

    async def seal_large(self, content: bytes, *place: str) -> bytes:
        """As `seal`, with turns for others."""
        return await _by_turns(self._seal(content, place))

    async def open_large(self, record: bytes, *place: str) -> bytes:
        """As `open`, with turns for others."""
        return await _by_turns(self._open(record, place))

    def is_newest(self, head: bytes) -> bool:
        """Whether a record that begins so is sealed under the newest secret."""
        return head.startswith(_MARK + self._newest)

    def _seal(self, content: bytes, place: tuple[str, ...]) -> Iterator[bytes]:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        encryptor = Cipher(AES(self._keys[self._newest]), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(_place_bytes(place))
        yield _MARK + self._newest + nonce
        for start in range(0, len(content), _STEP_BYTES):
            yield encryptor.update(content[start : start + _STEP_BYTES])
        yield encryptor.finalize() + encryptor.tag

    def _open(self, record: bytes, place: tuple[str, ...]) -> Iterator[bytes]:
        """What comes of it is true only once all of it has come."""
        if not is_sealed(record):
            raise SealMissing(place)
        key_id = record[len(_MARK) : len(_MARK) + _KEY_ID_BYTES]
        if key_id not in self._keys:
            raise SealUnknown(key_id.hex(), place)
        nonce = record[HEAD_BYTES - _NONCE_BYTES : HEAD_BYTES]
        mode = GCM(nonce, record[-_TAG_BYTES:])
        decryptor = Cipher(AES(self._keys[key_id]), mode).decryptor()
        decryptor.authenticate_additional_data(_place_bytes(place))
        end = len(record) - _TAG_BYTES
        for start in range(HEAD_BYTES, end, _STEP_BYTES):
            yield decryptor.update(record[start : min(start + _STEP_BYTES, end)])
        try:
            yield decryptor.finalize()
        except InvalidTag:
            raise SealBroken(place) from None


def is_sealed(record: bytes) -> bool:
    """Whether a record is encrypted, or the first `OVERHEAD_BYTES` of one are."""
    return len(record) >= OVERHEAD_BYTES and record.startswith(_MARK)


def _derived(purpose: str, secret: bytes) -> tuple[bytes, bytes]:
    """The id of a key, which may be seen, and the key."""
    info = f"partywall at rest 1: {purpose}".encode()
    both = HKDF(hashes.SHA256(), _KEY_ID_BYTES + _KEY_BYTES, salt=None, info=info).derive(secret)
    return both[:_KEY_ID_BYTES], both[_KEY_ID_BYTES:]


def _place_bytes(place: tuple[str, ...]) -> bytes:
    """Each part behind its length, so that ("ab", "c") and ("a", "bc") are two places."""
    parts = [part.encode() for part in place]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


async def _by_turns(parts: Iterator[bytes]) -> bytes:
    done = []
    for part in parts:
        done.append(part)
        if len(part) == _STEP_BYTES:
            await asyncio.sleep(0)
    return b"".join(done)
