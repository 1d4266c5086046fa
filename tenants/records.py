"""What the store holds, as immutable values. Times are Unix seconds."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from engine.hashing import derive_key
from tenants.errors import InvalidField

SECRET_BYTES = 32
_TENANT_ID = re.compile(r"[a-z0-9-]{1,63}")
_PROMPT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_TENANT_NAME_CHARS = 200


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A customer.

    `namespace_secret` decides who may share its blocks, and never leaves the service.
    """

    id: str
    name: str
    namespace_secret: bytes
    created_at: float

    @property
    def namespace_key(self) -> bytes:
        """The key of what all of the tenant's end users share: its registered system prompts."""
        return derive_key(self.namespace_secret, "tenant")

    def user_key(self, user: str) -> bytes:
        """The key of one end user's conversations."""
        return derive_key(self.namespace_secret, "user", user)

    def __repr__(self) -> str:
        return f"Tenant(id={self.id!r}, name={self.name!r})"


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as the store knows it: `digest` in place of the key, see `tenants.api_keys`."""

    id: str
    tenant_id: str
    digest: bytes
    created_at: float
    expires_at: float | None = None

    def is_live(self, now: float) -> bool:
        """Whether the key may be used at `now`."""
        return self.expires_at is None or now < self.expires_at


class SystemPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a registered system prompt. A version's text never changes."""

    name: str
    version: int
    text: str
    created_at: float


class PromptIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a prompt version, as one kind of engine hashes them.

    `engine` is the fingerprint of whatever changes block hashes besides the tokens.
    """

    name: str
    version: int
    engine: str
    token_count: int
    block_hashes: list[bytes]
    warmed_at: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that something was written. `name` is the prompt's, for `kind == "prompts"`.

    `resync` says that notices may have been missed: look at everything again. It names no tenant.
    """

    kind: Literal["tenant", "keys", "prompts", "resync"]
    tenant_id: str = ""
    name: str = ""


def is_tenant_id(tenant_id: str) -> bool:
    """Whether `tenant_id` may name a tenant."""
    return _TENANT_ID.fullmatch(tenant_id) is not None


def check_tenant_id(tenant_id: str) -> None:
    """Raises `InvalidField` unless `tenant_id` may name a tenant."""
    if not is_tenant_id(tenant_id):
        raise InvalidField("id", "1 to 63 characters out of a-z, 0-9 and '-'")


def check_tenant_name(name: str) -> None:
    """Raises `InvalidField` unless `name` may be shown as a tenant's name."""
    if not (0 < len(name) <= _MAX_TENANT_NAME_CHARS and name.isprintable()):
        raise InvalidField("name", f"1 to {_MAX_TENANT_NAME_CHARS} printable characters")


def is_prompt_name(name: str) -> bool:
    """Whether `name` may name a system prompt."""
    return _PROMPT_NAME.fullmatch(name) is not None


def check_prompt_name(name: str) -> None:
    """Raises `InvalidField` unless `name` may name a system prompt."""
    if not is_prompt_name(name):
        raise InvalidField("name", "1 to 64 characters out of A-Z, a-z, 0-9, '_' and '-'")
