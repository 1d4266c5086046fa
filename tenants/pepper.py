"""The server's pepper: a secret beside the store, never in it, that API key digests depend on."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

from tenants.errors import InvalidField

PEPPER_BYTES = 32
_FILE_NAME = "pepper"


def load_or_create_pepper(data_dir: Path, override_file: Path | None = None) -> bytes:
    """The 32-byte pepper of `data_dir`, made on first use; or that of `override_file`.

    Files hold 64 hexadecimal digits. Processes that start at once agree on one pepper.
    Raises `InvalidField` ("pepper_file") for a file that is missing or holds anything else.
    """
    if override_file is not None:
        return _read(override_file)
    path = data_dir / _FILE_NAME
    if not path.exists():
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(path)
    return _read(path)


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


def _read(path: Path) -> bytes:
    try:
        pepper = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise InvalidField("pepper_file", f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        pepper = b""
    if len(pepper) != PEPPER_BYTES:
        raise InvalidField(
            "pepper_file", f"{path} must hold {2 * PEPPER_BYTES} hexadecimal digits and no more"
        )
    return pepper
