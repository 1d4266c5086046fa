"""Work off the event loop: whose turn it is, and what becomes of work that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from app.workers import Workers
from tests.app.conftest import eventually


class Desk:
    """Pieces of work that go on until they are let go; `begun` has them in order."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._gates: dict[str, threading.Event] = {}
        self.begun: list[str] = []

    def bring(self, tenant: str, name: str) -> asyncio.Task[str]:
        self._gates[name] = threading.Event()
        return asyncio.create_task(self._workers.run(tenant, self._work(name)))

    def finish(self, name: str) -> None:
        self._gates[name].set()

    def finish_all(self) -> None:
        for name in self._gates:
            self.finish(name)

    def close(self) -> None:
        self.finish_all()
        self._workers.close()

    def _work(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.begun.append(name)
            assert self._gates[name].wait(20)
            return name

        return work


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk(Workers(threads=2))
    yield desk
    desk.close()


async def settle() -> None:
    """Let all tasks come to where they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_tenant_leaves_a_thread_to_the_others(desk: Desk) -> None:
    busy = [desk.bring("acme", name) for name in ("a1", "a2", "a3")]
    await settle()
    other = desk.bring("umbra", "u1")
    await eventually(lambda: len(desk.begun) == 2)
    assert set(desk.begun) == {"a1", "u1"}
    desk.finish_all()
    assert await asyncio.gather(other, *busy) == ["u1", "a1", "a2", "a3"]


async def test_tenants_that_wait_have_turns_and_each_in_its_own_order(desk: Desk) -> None:
    first = [desk.bring("acme", "a1"), desk.bring("umbra", "u1")]
    await eventually(lambda: len(desk.begun) == 2)
    order = {"acme": ("a2", "a3"), "umbra": ("u2",), "lex": ("l1", "l2")}
    waiting = []
    for tenant, names in order.items():
        waiting += [desk.bring(tenant, name) for name in names]
        await settle()
    desk.finish("a1")
    for count, name in enumerate(("a2", "l1", "a3", "l2"), start=3):
        await eventually(lambda count=count: len(desk.begun) == count)  # type: ignore[misc]
        assert desk.begun[-1] == name
        desk.finish(name)
    desk.finish_all()
    await asyncio.gather(*first, *waiting)
    assert desk.begun[-1] == "u2"


async def test_work_that_nobody_waits_for_any_more_keeps_its_thread_until_it_ends(
    desk: Desk,
) -> None:
    begun, waiting = desk.bring("acme", "a1"), desk.bring("acme", "a2")
    await eventually(lambda: desk.begun == ["a1"])
    begun.cancel()
    waiting.cancel()
    await asyncio.gather(begun, waiting, return_exceptions=True)
    last = desk.bring("acme", "a3")
    await asyncio.sleep(0.05)
    assert desk.begun == ["a1"]
    desk.finish("a1")
    desk.finish("a3")
    assert await last == "a3"
    assert desk.begun == ["a1", "a3"]


async def test_an_error_is_the_callers_and_frees_the_thread() -> None:
    workers = Workers(threads=1)

    def fail() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await workers.run("acme", fail)
    assert await workers.run("acme", lambda: 1) == 1
    workers.close()
