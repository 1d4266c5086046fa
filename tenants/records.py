"""What is known of a tenant."""

from __future__ import annotations

import re

import msgspec

from engine.hashing import derive_key
from tenants.errors import InvalidName

_TENANT_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PROMPT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One customer. `namespace_secret` decides who may share its blocks; it never leaves here."""

    id: str
    name: str
    namespace_secret: bytes
    created_at: float

    @property
    def namespace_key(self) -> bytes:
        """The key under which the blocks of the tenant's system prompts are hashed."""
        return derive_key(self.namespace_secret, "tenant")

    def user_key(self, user: str) -> bytes:
        """The key under which the blocks of an end user's conversations are hashed."""
        return derive_key(self.namespace_secret, "user", user)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One API key of a tenant, without the key: only a keyed digest of it is ever stored."""

    id: str
    tenant_id: str
    digest: str
    created_at: float
    expires_at: float | None = None

    def is_live(self, now: float) -> bool:
        """Whether the key opens anything at `now` (seconds since the epoch)."""
        return self.expires_at is None or now < self.expires_at


class SystemPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a registered system prompt; versions count from 1."""

    name: str
    version: int
    text: str
    created_at: float


class PromptIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a system prompt, as an engine with this fingerprint computes them."""

    name: str
    version: int
    engine: str
    token_count: int
    block_hashes: list[bytes]
    warmed_at: float


def check_tenant_id(tenant_id: str) -> None:
    """Raise `InvalidName` unless the id is 1 to 63 of a-z, 0-9 and inner hyphens."""
    if not _TENANT_ID.fullmatch(tenant_id):
        message = "a tenant id has 1 to 63 of a-z, 0-9 and '-', and no '-' at its ends"
        raise InvalidName(message, "id")


def check_prompt_name(name: str) -> None:
    """Raise `InvalidName` unless the name is 1 to 64 of A-Z, a-z, 0-9, '_' and '-'."""
    if not _PROMPT_NAME.fullmatch(name):
        raise InvalidName("a prompt name has 1 to 64 of A-Z, a-z, 0-9, '_' and '-'", "name")
