"""How many threads compute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.run import threads
from engine.run.threads import compute_threads


@pytest.fixture(autouse=True)
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group of this process, on a machine of 8 cores."""
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/outer/inner\n")
    group = tmp_path / "groups" / "outer" / "inner"
    group.mkdir(parents=True)
    monkeypatch.setattr(threads, "_CGROUP", tmp_path / "own")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return group


def test_one_thread_for_each_core(group: Path) -> None:
    (group / "cpu.max").write_text("max 100000\n")
    assert compute_threads(None) == 8
    assert compute_threads(3) == 3


@pytest.mark.parametrize(("quota", "expected"), [(50_000, 1), (250_000, 3), (900_000, 8)])
def test_no_more_threads_than_the_time_of_a_container_is_for(
    quota: int, expected: int, group: Path
) -> None:
    (group.parent / "cpu.max").write_text(f"{quota} 100000\n")
    assert compute_threads(None) == expected


def test_a_machine_without_control_groups_has_no_limit(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_CGROUP", group / "missing")
    assert compute_threads(None) == 8
