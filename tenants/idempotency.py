"""Writes that may be sent twice: the second finds what the first was answered, and does nothing.

An answer may hold an API key, so it is encrypted (AES-GCM) under a key that derives from the
pepper, and bound to the key that it was asked under.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenants import keyspace
from tenants.connection import GuardedRedis, Script
from tenants.errors import InvalidField, StoreConflict

KEPT_SECONDS = 24 * 3600
"""How long an answer is found again."""

IN_PROGRESS_SECONDS = 300
"""How long a write blocks its key at most, when whoever made it died."""

_DIGEST_BYTES = 32
_NONCE_BYTES = 12

# KEYS: the record. ARGV: length of its mark, the answer, seconds to keep it. A write that took so
# long that its mark is gone has no answer.
_FINISH = Script("""
local mark = redis.call('GETRANGE', KEYS[1], 0, ARGV[1] - 1)
if mark ~= '' then redis.call('SET', KEYS[1], mark .. ARGV[2], 'EX', ARGV[3]) end
""")


class Idempotency:
    """Answers by who asked under which key. Raises `StoreUnavailable` while Redis is down.

    Who `begin`s a write, and gets `None`, must `finish` or `abandon` it.
    """

    def __init__(self, redis: GuardedRedis, pepper: bytes) -> None:
        self._redis = redis
        self._secret = hmac.digest(pepper, b"partywall idempotency", sha256)
        self._cipher = AESGCM(hmac.digest(pepper, b"partywall idempotency answers", sha256))

    async def begin(self, actor: str, key: str, fingerprint: bytes) -> bytes | None:
        """The answer of an earlier write under this key, or `None` for the first.

        `fingerprint` says what the write is. Raises `InvalidField` ("Idempotency-Key") for another
        write under the same key, `StoreConflict` while the first one is being made.
        """
        name = self._name(actor, key)
        mark = self._digest(fingerprint)
        first, kept = await self._redis.transaction(
            ("SET", name, mark, "NX", "EX", IN_PROGRESS_SECONDS), ("GET", name)
        )
        if first:
            return None
        if not hmac.compare_digest(kept[:_DIGEST_BYTES], mark):
            raise InvalidField("Idempotency-Key", "was used for another request")
        sealed = kept[_DIGEST_BYTES:]
        if not sealed:
            raise StoreConflict("the first request with this Idempotency-Key is still in progress")
        nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        return self._cipher.decrypt(nonce, text, name.encode())

    async def finish(self, actor: str, key: str, answer: bytes) -> None:
        """Keep the answer of a write for a day."""
        name = self._name(actor, key)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, answer, name.encode())
        await self._redis.run_script(_FINISH, [name], [_DIGEST_BYTES, sealed, KEPT_SECONDS])

    async def abandon(self, actor: str, key: str) -> None:
        """Forget a write that was not made: it may be tried again under the same key."""
        await self._redis.execute("DEL", self._name(actor, key))

    def _name(self, actor: str, key: str) -> str:
        length = len(actor).to_bytes(8, "little")
        return keyspace.idempotency(self._digest(length + f"{actor}{key}".encode()))

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, sha256)
