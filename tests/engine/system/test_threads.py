"""How many threads compute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.system import threads
from engine.system.threads import compute_threads, physical_cores, thread_counts, threads_of_rank


@pytest.fixture(autouse=True)
def quotas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Of the control groups of this process, on a machine of 8 cores."""
    quotas: list[int] = []
    monkeypatch.setattr(threads, "cpu_quotas", lambda: quotas)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(threads, "_PROCESSORS", tmp_path)
    return quotas


@pytest.fixture
def cores_of_two(tmp_path: Path) -> None:
    """Each core runs two threads at once: numbers 0 and 4, 1 and 5, and so on."""
    for number in range(8):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        core = number % 4
        (folder / "thread_siblings_list").write_text(f"{core},{core + 4}\n")


def test_one_thread_for_each_core() -> None:
    assert compute_threads(None) == 8
    assert thread_counts(None) == [8]
    assert compute_threads(3) == 3


@pytest.mark.usefixtures("cores_of_two")
def test_where_a_core_runs_two_threads_both_numbers_are_to_be_tried(
    monkeypatch: pytest.MonkeyPatch, quotas: list[int]
) -> None:
    assert thread_counts(None) == [4, 8]
    assert compute_threads(None) == 8
    assert thread_counts(6) == [6], "what is configured is not tried"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4, 5})
    assert thread_counts(None) == [2, 3]
    quotas.append(2)
    assert thread_counts(None) == [2]


@pytest.mark.usefixtures("cores_of_two")
def test_processors_that_the_system_says_nothing_of_count_as_cores() -> None:
    assert physical_cores([0, 4, 8, 9]) == 3


def test_no_more_threads_than_the_time_of_a_container_is_for(quotas: list[int]) -> None:
    quotas += [9, 3, 4]
    assert compute_threads(None) == 3


def test_processes_that_compute_together_share_the_threads() -> None:
    assert threads_of_rank(None, 1) is None, "one alone tries what is fastest"
    assert threads_of_rank(6, 1) == 6
    assert [threads_of_rank(6, ranks) for ranks in (2, 4, 9)] == [3, 1, 1]
