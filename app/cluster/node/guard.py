"""Ends what a service has started on Ray, however the service itself ends: `guard.py FOLDER`.

Its standard input is the end of a pipe that the service alone holds. Whatever has FOLDER in its
environment, or a file open in it, was started for it: all of Ray's processes, and what these have
started; but not the service, which may only have closed its end.
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
    folder, service = sys.argv[1], os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # which a whole group may get: the service decides
    sys.stdin.buffer.read()
    end_all(folder, spared=service)
    shutil.rmtree(folder, ignore_errors=True)


def end_all(folder: str, spared: int) -> None:
    """Kill until there are none; who is killed may just have started another one."""
    while found := [pid for pid in _processes(folder) if pid != spared]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _processes(folder: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or is another user's
            if entry.name.isdecimal() and _belongs(entry, folder):
                yield int(entry.name)


def _belongs(process: Path, folder: str) -> bool:
    """Some of Ray's write their titles over their environments; they have logs open in there."""
    if os.fsencode(folder) in (process / "environ").read_bytes():
        return True
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(descriptor).startswith(f"{folder}/"):
                return True
    return False


if __name__ == "__main__":
    main()
