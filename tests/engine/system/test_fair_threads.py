"""Tenants have their turns, whatever one of them sends."""

from collections.abc import Callable
from functools import partial
from threading import Event

import pytest

from engine.system.fair_threads import FairThreads


def noted(seen: list[str], name: str) -> Callable[[], str]:
    def work() -> str:
        seen.append(name)
        return name

    return work


def test_each_tenant_has_its_turn_and_its_own_order() -> None:
    lanes: FairThreads[str | bool] = FairThreads(1, "test")
    held, seen = Event(), list[str]()
    lanes.submit("first", held.wait)
    names = ["a1", "a2", "a3", "b1", "c1", "b2"]
    futures = [lanes.submit(name[0], noted(seen, name)) for name in names]
    held.set()
    assert [future.result(60) for future in futures] == names
    assert seen == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_one_tenant_leaves_a_thread_to_others() -> None:
    lanes: FairThreads[str | bool] = FairThreads(2, "test")
    held = Event()
    mine = [lanes.submit("a", held.wait) for _ in range(5)]
    assert lanes.submit("b", partial(str, "there")).result(60) == "there"
    assert not any(future.done() for future in mine)
    held.set()
    assert all(future.result(60) for future in mine)


def test_what_is_cancelled_or_fails_keeps_no_thread() -> None:
    lanes: FairThreads[str | bool] = FairThreads(1, "test")
    held, seen = Event(), list[str]()
    lanes.submit("a", held.wait)
    unwanted, wrong = (
        lanes.submit("a", noted(seen, "unwanted")),
        lanes.submit("a", partial(int, "x")),
    )
    wanted = lanes.submit("a", noted(seen, "wanted"))
    assert unwanted.cancel()
    held.set()
    assert wanted.result(60) == "wanted"
    assert seen == ["wanted"]
    with pytest.raises(ValueError, match="invalid literal"):
        wrong.result(60)
