"""Writes that may be sent twice: the second finds what the first was answered, and does nothing.

An answer may hold an API key, so it is encrypted (AES-GCM) under a key that derives from the
pepper, and bound to the key that it was asked under.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from hashlib import sha256

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenants import redis_keys
from tenants.connection import GuardedRedis, Script
from tenants.errors import InvalidField, StoreConflict
from tenants.writes import guarding

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
        )


class Idempotency:
    """Answers by who asked under which key. Raises `StoreUnavailable` while Redis is down.

    Who `begin`s a write must `finish` or `abandon` it.
    """

    def __init__(self, redis: GuardedRedis, pepper: bytes) -> None:
        self._redis = redis
        self._secret = hmac.digest(pepper, b"partywall idempotency 2", sha256)
        self._cipher = AESGCM(hmac.digest(pepper, b"partywall idempotency answers", sha256))

    async def begin(self, actor: str, key: str, fingerprint: bytes) -> bytes | Attempt:
        """The answer of an earlier write under this key, or the first attempt at it.

        `fingerprint` says what the write is. Raises `InvalidField` ("Idempotency-Key") for another
        write under the same key, `StoreConflict` while the first one is being made, and where its
        answer was lost.
        """
        name = self._name(actor, key)
        mark = self._digest(fingerprint)
        head = mark + secrets.token_bytes(_ATTEMPT_BYTES)
        first, kept = await self._redis.transaction(
            ("SET", name, head, "NX", "EX", IN_PROGRESS_SECONDS), ("GET", name)
        )
        if first:
            return Attempt(name, head)
        if not hmac.compare_digest(kept[:_DIGEST_BYTES], mark):
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
        return self._cipher.decrypt(nonce, text, name.encode())

    async def finish(self, attempt: Attempt, answer: bytes) -> None:
        """Keep the answer of a write for a day."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, answer, attempt.record.encode())
        await self._redis.run_script(
            _FINISH, [attempt.record], [attempt.head, sealed, KEPT_SECONDS]
        )

    async def abandon(self, attempt: Attempt) -> None:
        """Let a write that has come to nothing be tried again under the same key.

        One that has made its change, though nobody heard of it, stays made.
        """
        await self._redis.run_script(_ABANDON, [attempt.record], [attempt.head])

    def _name(self, actor: str, key: str) -> str:
        length = len(actor).to_bytes(8, "little")
        return redis_keys.idempotency(self._digest(length + f"{actor}{key}".encode()))

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, sha256)
