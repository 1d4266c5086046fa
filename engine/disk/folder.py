"""The folder of kept files on disk: a folder in it for each owner, by a hash with a secret.

Everything here takes the time of a disk, and belongs into a thread; but for `Folder` itself, which
is opened before there is anything to wait for it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from engine.disk.files import PART_SUFFIX, SUFFIX, DamagedFile, Head, open_file, read_head

_log = logging.getLogger(__name__)
_SECRET: Final = "secret"
_SECRET_BYTES: Final = 32
_OWNER: Final = re.compile(r"[0-9a-f]{32}")
"""The name of an owner's folder; others are not ours."""
_ABANDONED_SECONDS: Final = 600.0
"""Behind which nobody goes on with a file that was begun; another process may."""
_FILE_SYSTEM_BLOCK: Final = 4096


@dataclass(slots=True, eq=False)
class KeptFile:
    """A file, as far as one has to know it to find its blocks."""

    path: Path
    head: Head
    num_bytes: int
    """On disk."""
    used: float
    """When its blocks were last used; in seconds of the wall clock, as `until` is."""
    until: float
    """It is dropped behind that."""
    look: int = 0
    """The last look through the pool that has found blocks of it there, and to be kept."""

    @property
    def owner(self) -> str:
        """The name of its owner's folder."""
        return self.path.parent.name


class Folder:
    """Where files are, and in which folder an owner's are.

    Owners' names are not on the disk: a folder is found by who knows an owner and the folder's
    secret, so that an owner's files can be removed without its key.
    """

    def __init__(self, root: Path) -> None:
        """Raises `OSError` where it cannot be made or read."""
        self.root = root
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        self.secrets: dict[str, str] = {}
        """By owner, what tells its namespaces' secret from former ones, where that is known."""
        self._secret = self._load_secret()

    def of_owner(self, owner: str) -> str:
        """The name of an owner's folder, which has another one under another secret."""
        parts = (owner.encode(), self.secrets.get(owner, "").encode())
        data = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return blake2b(data, key=self._secret, digest_size=16).hexdigest()

    def may_be_of(self, owner: str, file: KeptFile) -> bool:
        """Whether a file is that owner's, as far as its namespaces' secret is known."""
        return owner not in self.secrets or self.of_owner(owner) == file.owner

    def new_path(self, owner: str, salt: bytes) -> Path:
        """Of a file of the owner whose folder has that name. Raises `OSError`."""
        folder = self.root / owner
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{salt.hex()}{SUFFIX}"

    def scan(self, layout: bytes, known: set[Path]) -> list[KeptFile]:
        """The files that are there and not `known` yet, oldest use first, deepest of a chain first.

        Those that are damaged, of another `layout` or past their time are dropped.
        """
        now = time.time()
        found: list[KeptFile] = []
        reasons: Counter[str] = Counter()
        for path in self._paths(now):
            if path in known:
                continue
            try:
                head, stat = read_head(path)
            except FileNotFoundError:
                continue  # another process has dropped it
            except (DamagedFile, OSError) as error:
                reasons[str(error) if isinstance(error, DamagedFile) else "it cannot be read"] += 1
                _unlink(path)
                continue
            if head.layout != layout or stat.st_mtime < now:
                reasons["past its time" if head.layout == layout else "of another model"] += 1
                _unlink(path)
                continue
            size = disk_bytes(stat.st_size)
            found.append(KeptFile(path, head, size, stat.st_atime, stat.st_mtime))
        for reason, count in reasons.items():
            _log.warning("%d kept files are dropped: %s", count, reason)
        return sorted(found, key=lambda file: (file.used, -file.head.depth))

    def _paths(self, now: float) -> Iterable[Path]:
        """Every whole file. What its writer has abandoned is removed on the way.

        What is no file, but a pipe or a link, say, is none of ours, and left alone.
        """
        for folder in _owners_folders(self.root):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    if path.suffix == SUFFIX:
                        yield path
                    elif path.suffix == PART_SUFFIX:
                        with suppress(OSError):
                            if path.stat().st_ctime < now - _ABANDONED_SECONDS:
                                path.unlink()

    def _load_secret(self) -> bytes:
        """The folder's secret, made on first use; without it, older folders belong to nobody."""
        path = self.root / _SECRET
        secret = _read_secret(path)
        if secret is not None:
            return secret
        ownerless = _owners_folders(self.root)
        part = self.root / f"{_SECRET}.{secrets.token_hex(4)}"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
            part.unlink()
        except FileExistsError:
            secret = _read_secret(path)
            if secret is not None:  # another process was first, and has folders already
                part.unlink()
                return secret
            part.replace(path)
        for folder in ownerless:
            remove_folder(folder)
        return path.read_bytes()


def disk_bytes(size: int) -> int:
    """What a file of that size takes."""
    return -(-size // _FILE_SYSTEM_BLOCK) * _FILE_SYSTEM_BLOCK


def remove(files: Iterable[KeptFile]) -> None:
    """Remove files, whether or not they are still there."""
    for file in files:
        _unlink(file.path)


def remove_folder(folder: Path) -> None:
    """Remove an owner's folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_all(root: Path) -> None:
    """Remove every owner's folder from where there may have been some. Raises `OSError`."""
    with suppress(FileNotFoundError):
        for folder in _owners_folders(root):
            remove_folder(folder)


def mark(files: Iterable[tuple[Path, float, float]]) -> None:
    """Write down when files were last used, and until when they are kept."""
    for path, used, until in files:
        with suppress(OSError):
            os.utime(path, (used, until))


def _owners_folders(root: Path) -> list[Path]:
    with os.scandir(root) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if _OWNER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]


def _read_secret(path: Path) -> bytes | None:
    """A folder's secret; `None` where there is none, or what is there cannot be it."""
    try:
        with open(path, "rb", opener=open_file) as file:
            secret = file.read(_SECRET_BYTES + 1)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    return secret if len(secret) == _SECRET_BYTES else None


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("kept file %s cannot be removed: %s", path.name, error.strerror)
