"""API keys: `pw_<id>.<secret>`. The secret is shown once; what is stored is a keyed digest."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

_ID_BYTES = 8
_SECRET_BYTES = 24
_FORM = re.compile(r"pw_([0-9a-f]{16})\.([A-Za-z0-9_-]{32})")


def generate() -> tuple[str, str]:
    """A new key: its public id and the whole key, with 192 bits of secret."""
    key_id = secrets.token_hex(_ID_BYTES)
    return key_id, f"pw_{key_id}.{secrets.token_urlsafe(_SECRET_BYTES)}"


def key_id(api_key: str) -> str | None:
    """The public id in a key; `None` for a text that is no key at all."""
    match = _FORM.fullmatch(api_key)
    return match[1] if match else None


def digest(api_key: str, pepper: bytes) -> str:
    """HMAC-SHA256 of the whole key under the server's pepper, in hex."""
    return hmac.new(pepper, api_key.encode(), hashlib.sha256).hexdigest()


def matches(api_key: str, pepper: bytes, stored: str) -> bool:
    """Whether `stored` is the digest of this key; takes the same time wherever they differ."""
    return hmac.compare_digest(digest(api_key, pepper), stored)


def fingerprint(pepper: bytes) -> str:
    """Tells peppers apart without telling what they are."""
    return hmac.new(pepper, b"partywall pepper fingerprint", hashlib.sha256).hexdigest()[:16]
