"""API keys: `pw_<id>.<secret>`. The id may be shown and logged, the secret is the holder's alone.

The store keeps `digest(key, pepper)`: who reads Redis without the pepper can neither use a key nor
test a guess.
"""

from __future__ import annotations

import hmac
import re
import secrets
from hashlib import sha256

_ID_BYTES = 8
_SECRET_BYTES = 32
_API_KEY = re.compile(r"pw_([0-9a-f]{16})\.[A-Za-z0-9_-]{43}")


def generate() -> str:
    """A new key with a secret of 256 random bits."""
    return f"pw_{secrets.token_hex(_ID_BYTES)}.{secrets.token_urlsafe(_SECRET_BYTES)}"


def parse(api_key: str) -> str | None:
    """The key's id, or `None` for what cannot be a key."""
    match = _API_KEY.fullmatch(api_key)
    return match[1] if match else None


def digest(api_key: str, pepper: bytes) -> bytes:
    """HMAC-SHA256 of the whole key, 32 bytes."""
    return hmac.digest(pepper, api_key.encode(), sha256)


def fingerprint(pepper: bytes) -> bytes:
    """What may be kept beside the digests to recognize the pepper by, 32 bytes."""
    return hmac.digest(pepper, b"partywall pepper", sha256)


def pepper_id(fingerprint: bytes) -> bytes:
    """A short name of the pepper with this fingerprint."""
    return fingerprint[:8]
