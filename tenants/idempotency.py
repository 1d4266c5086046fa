"""Writes that may be sent twice: the second finds what the first was answered, and does nothing.

An answer may hold an API key, so it is encrypted (AES-GCM) under a key that derives from the
pepper, and bound to the key that it was asked under. What was written under another pepper that is
known is found, too.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.errors import InvalidField, SealBroken, StoreConflict
from tenants.storage.connection import GuardedRedis, Script
from tenants.writes.writes import guarding

KEPT_SECONDS = 24 * 3600
"""How long an answer is found again, and that a write was made whose answer was lost."""

IN_PROGRESS_SECONDS = 300
"""How long a write blocks its key at most, when whoever made it died."""

_DIGEST_BYTES = 32
_ATTEMPT_BYTES = 16
_HEAD_BYTES = _DIGEST_BYTES + _ATTEMPT_BYTES
_NONCE_BYTES = 12
_MADE = b"made"

# KEYS: the record. ARGV: its head, the answer, seconds to keep it. A write that took so long that
# its record is gone, or another's, has no answer.
_FINISH = Script("""
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return end
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'EX', ARGV[3])
""")

# KEYS: the record. ARGV: its head.
_ABANDON = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")


class Attempt(msgspec.Struct, frozen=True):
    """A write that was begun under a key, and has no answer yet.

    Its record is a head, `mark` of the write and a number of its own, until the write is made
    within `guarding`: from then on the record says so.
    """

    record: str
    head: bytes

    def guarding(self) -> contextlib.AbstractContextManager[None]:
        """Within the block, every commit happens only while this attempt has its key, and says so.

        A commit whose reply was lost can then not happen a second time under the same key: neither
        was the first forgotten, nor can it happen late, after another attempt has begun.
        """
        return guarding(
            (("GETRANGE", self.record, 0, _HEAD_BYTES - 1), self.head),
            ("SET", self.record, self.head + _MADE, "EX", KEPT_SECONDS),
            ("SET", self.record, self.head, "EX", IN_PROGRESS_SECONDS),
        )


class _Secrets:
    """What one pepper names, marks and encrypts."""

    def __init__(self, pepper: bytes) -> None:
        self._secret = hmac.digest(pepper, b"partywall idempotency 2", sha256)
        self.cipher = AESGCM(hmac.digest(pepper, b"partywall idempotency answers", sha256))

    def name(self, actor: str, key: str) -> str:
        """Where the record is of what `actor` writes under `key`."""
        length = len(actor).to_bytes(8, "little")
        return redis_keys.idempotency(self.digest(length + f"{actor}{key}".encode()))

    def digest(self, data: bytes) -> bytes:
        """What stands for `data` in the store."""
        return hmac.digest(self._secret, data, sha256)

    def answer(self, name: str, fingerprint: bytes, kept: bytes) -> bytes:
        """What a record says of a write. Raises what `begin` raises."""
        if not hmac.compare_digest(kept[:_DIGEST_BYTES], self.digest(fingerprint)):
            raise InvalidField("Idempotency-Key", "was used for another request")
        sealed = kept[_HEAD_BYTES:]
        if not sealed:
            raise StoreConflict("the first request with this Idempotency-Key is still in progress")
        if sealed == _MADE:
            raise StoreConflict(
                "the first request with this Idempotency-Key has made its change, but its answer "
                "is not here, or was lost: look at what is there"
            )
        nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self.cipher.decrypt(nonce, text, name.encode())
        except (InvalidTag, ValueError):
            raise SealBroken((name,)) from None


class Idempotency:
    """Answers by who asked under which key. Raises `StoreUnavailable` while Redis is down.

    Who `begin`s a write must `finish` or `abandon` it.
    """

    def __init__(self, redis: GuardedRedis, peppers: Peppers) -> None:
        self._redis = redis
        self._secrets = [_Secrets(pepper) for pepper in peppers.all]

    async def begin(self, actor: str, key: str, fingerprint: bytes) -> bytes | Attempt:
        """The answer of an earlier write under this key, or the first attempt at it.

        `fingerprint` says what the write is. Raises `InvalidField` ("Idempotency-Key") for another
        write under the same key, `StoreConflict` while the first one is being made, and where its
        answer was lost, and `SealBroken` where that was altered.
        """
        newest = self._secrets[0]
        names = [known.name(actor, key) for known in self._secrets]
        head = newest.digest(fingerprint) + secrets.token_bytes(_ATTEMPT_BYTES)
        attempt = Attempt(names[0], head)
        first, records = await self._claim(names, head)
        if first:
            records[0] = None
        for known, name, kept in zip(self._secrets, names, records, strict=True):
            if kept is not None:
                if first:
                    await self.abandon(attempt)
                return known.answer(name, fingerprint, kept)
        return attempt

    async def _claim(self, names: list[str], head: bytes) -> tuple[bool, list[bytes | None]]:
        """Whether there was no record under the first name, where ours is now; and all there are.

        In a Redis Cluster the others are read behind that, since they lie in other slots: of two
        attempts at once under two peppers each may then find the other, and neither goes on.
        """
        claim = ("SET", names[0], head, "NX", "EX", IN_PROGRESS_SECONDS)
        reads = [("GET", name) for name in names]
        if self._redis.is_cluster:
            first, own = await self._redis.transaction(claim, reads[0])
            return bool(first), [own, *await self._redis.pipeline(*reads[1:])]
        first, *records = await self._redis.transaction(claim, *reads)
        return bool(first), records

    async def finish(self, attempt: Attempt, answer: bytes) -> None:
        """Keep the answer of a write for a day."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._secrets[0].cipher.encrypt(nonce, answer, attempt.record.encode())
        await self._redis.run_script(
            _FINISH, [attempt.record], [attempt.head, sealed, KEPT_SECONDS]
        )

    async def abandon(self, attempt: Attempt) -> None:
        """Let a write that has come to nothing be tried again under the same key.

        One that has made its change, though nobody heard of it, stays made.
        """
        await self._redis.run_script(_ABANDON, [attempt.record], [attempt.head])
