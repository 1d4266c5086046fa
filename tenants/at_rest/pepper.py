"""The server's pepper: a secret beside the store, never in it.

API key digests depend on it, and it wraps the secrets that encrypt the store. Several may be known
at once, so that one can take the place of another while services run.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tenants.at_rest.sealer import Sealer
from tenants.errors import InvalidField

PEPPER_BYTES = 32
_FILE_NAME = "pepper"


def digest(api_key: str, pepper: bytes) -> bytes:
    """HMAC-SHA256 of the whole key, 32 bytes: all that the store has of it.

    Who reads Redis without the pepper can neither use a key nor test a guess.
    """
    return hmac.digest(pepper, api_key.encode(), sha256)


def fingerprint(pepper: bytes) -> bytes:
    """What may be kept beside the digests to recognize the pepper by, 32 bytes."""
    return hmac.digest(pepper, b"partywall pepper", sha256)


def pepper_id(fingerprint: bytes) -> bytes:
    """A short name of the pepper with this fingerprint."""
    return fingerprint[:8]


class Peppers:
    """The pepper that is used, and others that are known besides."""

    def __init__(self, current: bytes, *others: bytes) -> None:
        self.current = current
        self.all = list(dict.fromkeys((current, *others)))
        self.sealer = Sealer("records", *self.all)
        self.fingerprints = [fingerprint(one) for one in self.all]
        """As the store lists those in use; the first is that of the current one."""

    def digests(self, api_key: str) -> list[bytes]:
        """What the store may know an API key by; the first is that of the current pepper."""
        return [digest(api_key, one) for one in self.all]


def load_peppers(
    data_dir: Path, override_file: Path | None = None, other_files: Sequence[Path] = ()
) -> Peppers:
    """The pepper as `load_or_create_pepper` finds it, and those of other files.

    Raises `InvalidField` ("pepper_file", "other_pepper_files").
    """
    current = load_or_create_pepper(data_dir, override_file)
    return Peppers(current, *(_read(path, "other_pepper_files") for path in other_files))


def load_or_create_pepper(data_dir: Path, override_file: Path | None = None) -> bytes:
    """The 32-byte pepper of `data_dir`, made on first use; or that of `override_file`.

    Files hold 64 hexadecimal digits. Processes that start at once agree on one pepper.
    Raises `InvalidField` ("pepper_file") for a file that is missing or holds anything else.
    """
    if override_file is not None:
        return _read(override_file)
    path = pepper_path(data_dir)
    if not path.exists():
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(path)
    return _read(path)


def pepper_path(data_dir: Path) -> Path:
    """Where the one that was made on first use is."""
    return data_dir / _FILE_NAME


def _create(path: Path) -> None:
    """Write a new pepper to `path`, whole or not at all, unless a file is there."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".pepper-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(PEPPER_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _read(path: Path, field: str = "pepper_file") -> bytes:
    try:
        pepper = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise InvalidField(field, f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        pepper = b""
    if len(pepper) != PEPPER_BYTES:
        raise InvalidField(
            field, f"{path} must hold {2 * PEPPER_BYTES} hexadecimal digits and no more"
        )
    return pepper
