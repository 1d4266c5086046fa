"""Writes that wait for the store: in order, and no more than so many bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from app.upkeep.late_writes import LateWrites
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
