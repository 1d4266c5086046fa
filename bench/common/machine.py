"""The machine a bench runs on, and what else keeps it busy."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Self

import psutil

_PACKAGES = ("torch", "triton", "transformers", "uvicorn", "websockets", "starlette")
_FOREIGN_LOAD_PERCENT = 10.0


def describe_machine() -> dict[str, object]:
    """Processor, cores this process may use, and memory."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def describe_versions() -> dict[str, str]:
    """Python and the libraries that matter for speed; one that is not installed is left out."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def warn_if_busy() -> float:
    """How busy all cores are while this process sleeps for a second; the reader is told if that is
    much.
    """
    foreign = psutil.cpu_percent(interval=1.0)
    if foreign > _FOREIGN_LOAD_PERCENT:
        print(
            f"warning: other programs keep this machine {foreign:.0f} % busy; the figures suffer",
            file=sys.stderr,
        )
    return foreign


class LoadWatch:
    """How busy this machine is with what is not the bench's, from the making of this on.

    This process and its descendants are the bench's own.
    """

    def __init__(self) -> None:
        self._since = self._now()

    def foreign_percent(self) -> float:
        """Of all cores' time; what a descendant used that has ended counts as foreign."""
        before, now = self._since, self._now()
        seconds = (now.at - before.at) * (os.cpu_count() or 1)
        foreign = (now.busy - before.busy) - (now.own - before.own)
        return max(0.0, foreign / seconds * 100) if seconds else 0.0

    @staticmethod
    def _now() -> _CpuSeconds:
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        return _CpuSeconds(time.monotonic(), busy, tree_cpu_seconds(os.getpid()))


@dataclass(frozen=True)
class _CpuSeconds:
    at: float
    busy: float
    own: float


def tree_cpu_seconds(pid: int) -> float:
    """Processor time that a process and its descendants have used."""
    return _of_tree(pid, lambda process: sum(process.cpu_times()[:2]))


def tree_rss_mib(pid: int) -> float:
    """Resident memory of a process and its descendants, in MiB; shared pages count each time."""
    return _of_tree(pid, lambda process: process.memory_info().rss / 2**20)


def _of_tree(pid: int, look: Callable[[psutil.Process], float]) -> float:
    root, total = psutil.Process(pid), 0.0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            total += look(process)
    return total


class PeakMemory:
    """The most that `look` says of some memory, in MiB, every so many seconds while entered."""

    def __init__(self, look: Callable[[], float], seconds: float) -> None:
        self._look, self._seconds = look, seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mib = 0.0

    def __enter__(self) -> Self:
        self.reset()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def reset(self) -> None:
        """Forget the peak so far."""
        self.mib = self._look()

    def _watch(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while not self._done.wait(self._seconds):
                self.mib = max(self.mib, self._look())


def rss_mib(pid: int) -> float:
    """Resident memory of one process."""
    return float(psutil.Process(pid).memory_info().rss) / 2**20


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
