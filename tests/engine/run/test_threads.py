"""How many threads compute."""

from __future__ import annotations

import os

import pytest

from engine.run import threads
from engine.run.threads import compute_threads


@pytest.fixture(autouse=True)
def quotas(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the control groups of this process, on a machine of 8 cores."""
    quotas: list[int] = []
    monkeypatch.setattr(threads, "cpu_quotas", lambda: quotas)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return quotas


def test_one_thread_for_each_core() -> None:
    assert compute_threads(None) == 8
    assert compute_threads(3) == 3


def test_no_more_threads_than_the_time_of_a_container_is_for(quotas: list[int]) -> None:
    quotas += [9, 3, 4]
    assert compute_threads(None) == 3
