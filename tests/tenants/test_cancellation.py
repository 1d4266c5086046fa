"""Whoever talks to Redis can be cancelled at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tenants.storage import changes
from tests.tenants.conftest import Room

MOMENTS = 12


async def stop_at_every_moment(work: Coroutine[Any, Any, None], moment: int) -> None:
    """Cancel `work` after so many turns of the event loop; it must then be over."""
    task = asyncio.create_task(work)
    for _ in range(moment):
        await asyncio.sleep(0)
    task.cancel()
    _, running = await asyncio.wait({task}, timeout=5)
    assert not running


async def test_a_listener_stops_whenever_it_is_cancelled(room: Room) -> None:
    async def listen() -> None:
        async for _ in changes.listen(room.redis):
            pass

    for moment in range(MOMENTS):
        await stop_at_every_moment(listen(), moment)


async def test_a_loop_of_commands_stops_whenever_it_is_cancelled(room: Room) -> None:
    async def ask() -> None:
        while True:
            await room.redis.execute("PING")

    for moment in range(MOMENTS):
        await stop_at_every_moment(ask(), moment)
