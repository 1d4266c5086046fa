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

    What a group holds of files counts as free where the system can take it back: what was not used
    of late, and what was (weights that were just written or read) but is mapped by no process.
    """
    return max(0, min([psutil.virtual_memory().available, *_unused_memory()]))


def _unused_memory() -> Iterator[int]:
    """What is left of the limit of each group that has one."""
    for group in _groups("memory"):
        for limit, usage, prefix, mapped in (
            ("memory.max", "memory.current", "", "file_mapped"),
            ("memory.high", "memory.current", "", "file_mapped"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "total_mapped_file"),
        ):
            with suppress(OSError, ValueError):  # "max" is no number
                free = _number(group / limit) - _number(group / usage)
                statistics = _statistics(group / "memory.stat")
                inactive = statistics.get(f"{prefix}inactive_file", 0)
                active = statistics.get(f"{prefix}active_file", 0)
                yield free + max(inactive, inactive + active - statistics.get(mapped, 0))


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


def _statistics(file: Path) -> dict[str, int]:
    """A file whose lines are names and numbers; nothing if it is not there."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value in lines}
