"""What the control groups that this process is in leave it of the machine: cores and memory.

A container sees the whole machine, and is slowed down or killed for what its group may not use.
Both versions are read, also side by side. Groups are nested, and the tightest one counts; a
container that sees only its own part of the tree has it at the mount point, whatever its path is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_MEMBERSHIP, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cpu_quotas() -> Iterator[int]:
    """Cores whose time this process may use, rounded up, for each group that has a limit."""
    for group in _groups("cpu"):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            if quota != "max":
                yield -(-int(quota) // int(period))
        with suppress(OSError, ValueError):
            quota_us = _number(group / "cpu.cfs_quota_us")
            if quota_us > 0:
                yield -(-quota_us // _number(group / "cpu.cfs_period_us"))


def available_memory() -> int:
    """Bytes that may still be taken: what the machine has, or less if a group may not use it all.

    What a group holds of files counts as free where the system can take it back.
    """
    return max(0, min([psutil.virtual_memory().available, *_unused_memory()]))


def _unused_memory() -> Iterator[int]:
    """What is left of the limit of each group that has one."""
    for group in _groups("memory"):
        for limit, usage, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.high", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # "max" is no number
                used = _number(group / usage) - _statistic(group / "memory.stat", reclaimable)
                yield _number(group / limit) - used


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the groups that limit `controller` for this process, the innermost first."""
    try:
        lines = os.fsdecode(_MEMBERSHIP.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has no names of controllers; beside version 1 it has a folder of its own.
        for root in (controllers, controller) if controllers else ("", "unified"):
            innermost = _MOUNT / root / path.lstrip("/")
            yield innermost
            yield from (group for group in innermost.parents if group.is_relative_to(_MOUNT))


def _number(file: Path) -> int:
    return int(file.read_text())


def _statistic(file: Path, name: str) -> int:
    """A line of a file of names and numbers; 0 if it is not there."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
