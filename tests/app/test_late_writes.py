"""Writes that wait for the store: in order, and no more than so many bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from app.late_writes import LateWrites
from tenants.errors import StoreUnavailable


async def test_what_is_late_is_bounded() -> None:
    late = LateWrites(max_bytes=10)
    written: list[str] = []

    def writing(name: str) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            if down:
                raise StoreUnavailable("down")
            written.append(name)

        return write

    down = True
    assert not await late.make("a", 6, writing("one"))
    assert not await late.make("a", 6, writing("two"))
    assert not await late.make("a", 4, writing("three"))
    assert len(late) == 2
    with pytest.raises(StoreUnavailable):
        await late.catch_up("a")
    down = False
    assert await late.make("a", 20, writing("four"))
    assert written == ["one", "three", "four"]
    assert len(late) == 0


async def test_what_can_never_be_written_keeps_nothing_else_back() -> None:
    late = LateWrites(max_bytes=10)
    written: list[str] = []

    async def poison() -> None:
        if not down:
            raise ValueError("another thing is there")
        raise StoreUnavailable("down")

    async def write() -> None:
        if down:
            raise StoreUnavailable("down")
        written.append("one")

    down = True
    assert not await late.make("a", 6, poison)
    assert not await late.make("b", 4, write)
    down = False
    await late._catch_up_all()
    assert written == ["one"]
    assert len(late) == 0
    assert await late.make("c", 10, write)
