"""A Ray cluster of this machine alone: on loopback, told no secrets, and gone with the service."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import ray

from app.cluster.node import guard
from engine.system.secrecy import without_secrets

_OBJECT_STORE_BYTES: Final = 80 << 20
"""Messages are small, and go past it."""
_END_SECONDS: Final = 10.0
_TOKEN: Final = secrets.token_hex(32)
"""What Ray asks of who speaks to it. Ray reads it once in a process."""
_TOKEN_VARIABLE: Final = "RAY_AUTH_TOKEN_PATH"
"""By it the guard knows Ray's processes, too, and nothing else may have it."""


class LocalRay:
    """Starts Ray's processes, under a guard that ends them if this process cannot."""

    def __init__(self, num_cpus: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="partywall-ray-")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        path = Path(self._folder, "token")
        with open(path, "x", opener=_for_us_alone) as file:
            file.write(_TOKEN)
        try:
            with _environment({_TOKEN_VARIABLE: str(path), "TMPDIR": self._folder}):
                ray.init(
                    "local",
                    num_cpus=num_cpus,
                    include_dashboard=False,
                    configure_logging=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    log_to_driver=False,
                    _temp_dir=self._folder,
                    _node_ip_address="127.0.0.1",
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it: everything that runs there, and what it has written."""
        ray.shutdown()
        with suppress(subprocess.TimeoutExpired):
            self._guard.communicate(timeout=_END_SECONDS)


@contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    """Processes that are started meanwhile have no secrets, and `more`."""
    before = dict(os.environ)
    for name in before.keys() - without_secrets(before).keys():
        del os.environ[name]
    os.environ |= more
    try:
        yield
    finally:
        for name in more.keys() - before.keys():
            del os.environ[name]
        os.environ |= before


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
