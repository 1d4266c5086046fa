"""Which cores a service, its engine and the bench run on, and who goes first there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PRIORITY = 1
"""The lowest of the real-time priorities: before every ordinary process."""


@contextmanager
def pinned(pid: int) -> Iterator[bool]:
    """The service on the first core, its children on the second, this process on the third or that.

    Nothing is pinned where there is one core. Threads that a process starts later stay with it.
    """
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        yield False
        return
    mine, others, *rest = sorted(before)
    for process in psutil.Process(pid).children(recursive=True):
        _each_thread(process.pid, lambda thread: os.sched_setaffinity(thread, {others}))
    _each_thread(pid, lambda thread: os.sched_setaffinity(thread, {mine}))
    os.sched_setaffinity(0, {rest[0] if rest else others})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def undisturbed(pid: int) -> Iterator[bool]:
    """The service, its children and this process wait for no ordinary process; whether they do.

    They have real-time priority (SCHED_RR), which takes root or CAP_SYS_NICE. The kernel leaves
    other processes a twentieth of a core even so.
    """
    processes = [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
    processes.append(os.getpid())
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except PermissionError:
        yield False
        return
    try:
        _schedule(processes, os.SCHED_RR, _PRIORITY)
        yield True
    finally:
        _schedule(processes, os.SCHED_OTHER, 0)


def _schedule(processes: list[int], policy: int, priority: int) -> None:
    for one in processes:
        _each_thread(
            one, lambda thread: os.sched_setscheduler(thread, policy, os.sched_param(priority))
        )


def _each_thread(pid: int, act: Callable[[int], None]) -> None:
    """With all threads of a process, unless it has ended meanwhile, or they have."""
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                act(int(thread.name))
