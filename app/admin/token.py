"""The operators' tokens for `/admin`, of which only hashes are kept.

The first start makes one. A file of one's own may hold several, a line each: a token, or a name and
a token, so that the audit tells who did what; and behind these what its holder is held to.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenants.keys.operator_tokens import token_digest
from tenants.records import is_id

_FILE_NAME = "admin-token.sha256"
_PREFIX = "pwadmin_"
_RANDOM_BYTES = 32
MIN_CHARACTERS = 16
DEFAULT_HOLDER = "admin"
EVERYTHING = "admin"
READING = "read"
OF_ITSELF = "/me"
_TOKENS = "/tokens"
_OF_TENANT = "/tenants/{tenant}"
_WRITTEN_BY_TENANTS = tuple(f"{_OF_TENANT}/{what}" for what in ("keys", "prompts", "adapters"))


@dataclass(frozen=True)
class Operator:
    """Who holds a token, and what they are held to."""

    name: str
    reads_only: bool = False
    tenant: str | None = None
    """Of whom alone they see anything, and write keys, prompts and adapters."""
    subject: str | None = None
    """What tells them from others of the same name, where a name can be another's some day."""

    @property
    def identity(self) -> str:
        """Whose an `Idempotency-Key` is."""
        return self.subject or self.name

    def may(self, method: str, template: str, tenant: str | None) -> bool:
        """Whether they may ask for a path of this template, with this tenant in it."""
        is_read = method in ("GET", "HEAD")
        if template == OF_ITSELF:
            return is_read
        if template.startswith(_TOKENS) and (self.reads_only or self.tenant is not None):
            return False
        if self.reads_only and not is_read:
            return False
        if self.tenant is None:
            return True
        # What else belongs to a tenant, such as its limits and its group, says what it may take.
        written = template.startswith(_WRITTEN_BY_TENANTS)
        return tenant == self.tenant and template.startswith(_OF_TENANT) and (is_read or written)


def is_role(word: str) -> bool:
    """Whether `word` says what somebody may do."""
    return word in (EVERYTHING, READING) or word.startswith("tenant:")


def operator_of(name: str, roles: Sequence[str], subject: str | None = None) -> Operator:
    """Somebody who is held to all of `roles` together; to `admin` is to nothing.

    Raises `ValueError` for more than one tenant.
    """
    tenants = {role.removeprefix("tenant:") for role in roles if role.startswith("tenant:")}
    if len(tenants) > 1 or not all(map(is_id, tenants)):
        raise ValueError("'tenant:ID' names one tenant")
    tenant = next(iter(tenants), None)
    return Operator(name, reads_only=READING in roles, tenant=tenant, subject=subject)


@dataclass(frozen=True)
class AdminToken:
    """What a given token is checked against: digests, and whose they are.

    `created` is the token itself, where it is new.
    """

    holders: Mapping[bytes, Operator]
    created: str | None = None

    @classmethod
    def of(cls, token: str, created: str | None = None) -> AdminToken:
        """One token, of the operator called `admin`."""
        return cls({token_digest(token): Operator(DEFAULT_HOLDER)}, created)

    def holder(self, token: str) -> Operator | None:
        """Whose `token` is, in time that does not depend on how much of it is right."""
        digest = token_digest(token)
        found = None
        for known, operator in self.holders.items():
            if hmac.compare_digest(digest, known):
                found = operator
        return found


def load_admin_token(data_dir: Path, token_file: Path | None) -> AdminToken:
    """The tokens in `token_file` if one is given, else the one of `data_dir`, made on first use.

    Raises `ValueError` for a given token that is too short to be safe, a line that is none or a
    second one of the same token, and a file without any or with no digest, and `OSError`.
    """
    if token_file is not None:
        lines = [line.split() for line in token_file.read_text().splitlines() if line.strip()]
        parsed = list(map(_parse, lines or [[]]))
        holders = dict(parsed)
        if len(holders) < len(parsed):
            raise ValueError("admin_token_file: two lines hold the same token")
        return AdminToken(holders)
    path = token_path(data_dir)
    if path.exists():
        return AdminToken({_read_digest(path): Operator(DEFAULT_HOLDER)})
    token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    write_private(path, token_digest(token).hex() + "\n")
    return AdminToken.of(token, created=token)


def token_path(data_dir: Path) -> Path:
    """Where the digest of the token that the first start made is kept."""
    return data_dir / _FILE_NAME


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        scratch.rename(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _read_digest(path: Path) -> bytes:
    try:
        digest = bytes.fromhex(path.read_text().strip())
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(
            f"{path} is no digest of a token; delete it, and start again for a new one"
        )
    return digest


def _parse(words: list[str]) -> tuple[bytes, Operator]:
    """A line of a token file as digest and holder."""
    if len(words) < 2:
        words = [DEFAULT_HOLDER, *words] if words else [DEFAULT_HOLDER, ""]
    name, token, *roles = words
    is_known = all(map(is_role, roles)) and not is_role(token)
    if len(token) < MIN_CHARACTERS or not is_known:
        raise ValueError(
            f"admin_token_file: each line holds a token of at least {MIN_CHARACTERS} characters, "
            "or a name and a token, and behind both any of 'admin', 'read', 'tenant:ID'"
        )
    try:
        return token_digest(token), operator_of(name, roles)
    except ValueError as error:
        raise ValueError(f"admin_token_file: {error}") from None
