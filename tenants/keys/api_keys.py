"""API keys, `pw_<id>.<secret>`, and a tenant's list of them, as values.

The id may be shown and logged, the secret is the holder's alone: the store keeps the key's digest
under the pepper, see `tenants.at_rest.pepper`, by which it finds the list.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

import msgspec

from tenants import redis_keys
from tenants.errors import KeyNotFound
from tenants.records import ApiKey, Tenant
from tenants.storage.connection import Command

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


class Edit(msgspec.Struct, frozen=True):
    """A change of one key, as its tenant's list shall show it."""

    keys: list[ApiKey]
    target: str
    before: ApiKey | None
    after: ApiKey | None


class Held(msgspec.Struct, frozen=True):
    """A tenant and its list of keys, with the list as it is stored."""

    tenant: Tenant
    blob: bytes | None
    keys: list[ApiKey]


def lookup_commands(old: Iterable[ApiKey], new: Iterable[ApiKey]) -> list[Command]:
    """What makes the look-up of keys agree with a tenant's list that changed."""
    before = {key.digest: key for key in old}
    after = {key.digest: key for key in new}
    gone: list[Command] = [
        ("DEL", redis_keys.api_key(digest)) for digest in before if digest not in after
    ]
    return gone + [_lookup(key) for digest, key in after.items() if before.get(digest) != key]


def _lookup(key: ApiKey) -> Command:
    command = ("SET", redis_keys.api_key(key.digest), key.tenant_id)
    if key.expires_at is None:
        return command
    # Rounded up: the list decides, the look-up may only outlive it.
    return (*command, "PXAT", int(key.expires_at * 1000) + 1)


def find(keys: list[ApiKey], key_id: str) -> ApiKey:
    """Raises `KeyNotFound`."""
    for key in keys:
        if key.id == key_id:
            return key
    raise KeyNotFound(key_id)


def newest(keys: list[ApiKey]) -> ApiKey:
    """The one that was made last and not replaced. Raises `KeyNotFound`."""
    for key in keys:
        if key.replaced_by is None:
            return key
    raise KeyNotFound(None)
