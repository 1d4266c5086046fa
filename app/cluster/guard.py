"""Ends what a service has started on Ray, however the service itself ends: `guard.py FOLDER`.

Its standard input is the end of a pipe that the service alone holds. Whatever has FOLDER in its
environment was started for it: all of Ray's processes, and what these have started.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_LOOK_SECONDS = 0.05


def main() -> None:
    """Wait for the service's end; then end what is left of the cluster, and delete its folder."""
    folder = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # which a whole group may get: the service decides
    sys.stdin.buffer.read()
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(folder: str) -> None:
    """Kill until there are none; who is killed may just have started another one."""
    while found := list(_processes(os.fsencode(folder))):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _processes(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                yield int(entry.name)


if __name__ == "__main__":
    main()
