"""The operator's token for `/admin`: made on the first start, of which only a hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

_FILE_NAME = "admin-token.sha256"
_PREFIX = "pwadmin_"
_RANDOM_BYTES = 32
MIN_CHARACTERS = 16


@dataclass(frozen=True)
class AdminToken:
    """What a given token is checked against. `created` is the token itself, where it is new."""

    digest: bytes
    created: str | None = None

    def matches(self, token: str) -> bool:
        """Whether `token` is the right one, in time that does not depend on the answer."""
        return hmac.compare_digest(_digest(token), self.digest)


def load_admin_token(data_dir: Path, token_file: Path | None) -> AdminToken:
    """The token in `token_file` if one is given, else the one of `data_dir`, made on first use.

    Raises `ValueError` for a given token that is too short to be safe, and `OSError`.
    """
    if token_file is not None:
        token = token_file.read_text().strip()
        if len(token) < MIN_CHARACTERS:
            raise ValueError(f"admin_token_file: the token must have {MIN_CHARACTERS} characters")
        return AdminToken(_digest(token))
    path = data_dir / _FILE_NAME
    if path.exists():
        return AdminToken(bytes.fromhex(path.read_text().strip()))
    token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    write_private(path, _digest(token).hex() + "\n")
    return AdminToken(_digest(token), token)


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


def _digest(token: str) -> bytes:
    # A plain hash is enough for a token that is long and random.
    return hashlib.sha256(token.encode()).digest()
