"""API keys: `pw_<id>.<secret>`. The id may be shown and logged, the secret is the holder's alone.

The store keeps its digest under the pepper, see `tenants.at_rest.pepper`.
"""

from __future__ import annotations

import re
import secrets

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
