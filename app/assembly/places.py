"""Folders and files that the settings name. A start looks at them first, before it takes long."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.assembly.check import Check
from app.settings import Settings, option_name

_MIB = 2**20
_STORE_BYTES = 256 * _MIB
"""Of the embedded store's file, with room to rewrite it, for some thousand conversations."""
_EXPIRES_SOON = timedelta(days=14)


def check_places(settings: Settings) -> Iterator[Check]:
    """Of each folder, of the ready file's, and of the certificate."""
    yield _folder("cache dir", "cache_dir", settings.cache_dir)
    if _needs_data_dir(settings):
        yield _folder("data dir", "data_dir", settings.data_dir)
    if settings.kept_disk and settings.prefix_cache:
        yield _kept(settings)
    if settings.ready_file is not None:
        yield _ready_file(settings.ready_file)
    if settings.ssl_certfile is not None and settings.ssl_keyfile is not None:
        yield _certificate(settings.ssl_certfile, settings.ssl_keyfile)


def check_disk(settings: Settings) -> Iterator[Check]:
    """Whether what is to be kept in the data directory has room there."""
    kept = settings.kept_dir
    used = sum(file.stat().st_size for file in kept.glob("*/*")) if may_write(kept) else 0
    needed = max(0, int(settings.kept_disk) - used) if settings.prefix_cache else 0
    needed += _STORE_BYTES if settings.redis_url is None else 0
    free = shutil.disk_usage(_existing(settings.data_dir)).free
    what = f"{free // _MIB} MiB are free for {settings.data_dir}"
    if free >= needed:
        yield Check("disk", "ok", what)
        return
    yield Check(
        "disk",
        "warn",
        f"{what}, and it may come to hold {needed // _MIB} MiB more",
        f"free some, lower {option_name('kept_disk')}, or choose another {option_name('data_dir')}",
    )


def may_write(folder: Path) -> bool:
    """Whether files may be made in it, or it may be made."""
    folder = _existing(folder)
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest above that is there."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _needs_data_dir(settings: Settings) -> bool:
    """Redis and files of the operator's own can take the place of all that is in it."""
    given = (settings.redis_url, settings.pepper_file, settings.admin_token_file)
    return None in given


def _folder(part: str, field: str, folder: Path) -> Check:
    if may_write(folder):
        there = "is there" if folder.exists() else "can be made"
        return Check(part, "ok", f"{folder} {there}, and can be written")
    return Check(
        part,
        "fail",
        f"{option_name(field)}: {folder} cannot be written by user {os.geteuid()}"
        + (" (it is no folder)" if folder.exists() and not folder.is_dir() else ""),
        "give it to that user, or choose another folder",
    )


def _kept(settings: Settings) -> Check:
    folder = settings.kept_dir
    if may_write(folder):
        return Check("kept blocks", "ok", f"up to {settings.kept_disk // _MIB} MiB in {folder}")
    return Check(
        "kept blocks",
        "warn",
        f"{folder} cannot be written by user {os.geteuid()}: no blocks outlive a restart",
        f"give it to that user, or keep none with {option_name('kept_disk')} 0",
    )


def _ready_file(path: Path) -> Check:
    if path.is_dir() or not may_write(path.parent):
        return Check(
            "ready file",
            "fail",
            f"{option_name('ready_file')}: {path} cannot be written by user {os.geteuid()}",
            "name a file in a folder of that user's",
        )
    return Check("ready file", "ok", f"{path} can be written")


def _certificate(chain: Path, key: Path) -> Check:
    from cryptography import x509

    try:
        # Without a password of ours OpenSSL would ask the terminal for that of a locked key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=lambda: "")
        ends = x509.load_pem_x509_certificates(chain.read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "no PEM, or a locked key"
        return Check(
            "certificate",
            "fail",
            f"{option_name('ssl_certfile')}, {option_name('ssl_keyfile')}: {chain} and {key} are "
            f"no certificate chain and its key ({reason})",
            "give both as PEM, the key without a password",
        )
    if ends - datetime.now(UTC) < _EXPIRES_SOON:
        return Check(
            "certificate",
            "warn",
            f"{chain} is valid until {ends:%Y-%m-%d %H:%M} UTC, which is soon or was",
            "renew it, and start again",
        )
    return Check("certificate", "ok", f"valid until {ends:%Y-%m-%d}")
