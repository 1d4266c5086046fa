"""How the engine is brought the pictures of requests that run."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api import EngineError
from tests.app.conftest import MODEL, World, eventually
from tests.app.scripted_engine import ScriptedEngine
from tests.app.seeing.conftest import HELLO, asked, input_image, url, user


async def bring(engine: ScriptedEngine, name: bytes) -> list[bytes]:
    return [piece async for piece in engine.source(name)]


async def test_a_picture_is_brought_for_as_long_as_a_request_runs_with_it(world: World) -> None:
    engine = world.engine
    engine.hold_after = 1
    create = world.client().chat.completions.create
    part: Any = {"type": "image_url", "image_url": {"url": url(HELLO)}}
    streams = [await create(model=MODEL, messages=[user(part)], stream=True) for _ in range(3)]  # type: ignore[list-item]
    await eventually(lambda: len(engine.holding) == 3)
    name = asked(world).pictures[0].name
    # Again, as after a crash.
    brought = await bring(engine, name)
    assert await bring(engine, name) == brought
    for left in (streams[2], streams[0]):
        before = len(engine.active)
        await left.close()
        await eventually(lambda before=before: len(engine.active) < before)
        assert await bring(engine, name) == brought
    engine.release()
    async for _ in streams[1]:
        pass
    await eventually(lambda: not engine.active)
    with pytest.raises(EngineError):
        await bring(engine, name)


async def test_large_ones_come_in_pieces(world: World) -> None:
    data = b"3" + bytes(3_000_000)
    content: Any = [user(input_image(data))]
    await world.client().responses.create(model=MODEL, input=content)
    [(_, [_, *pieces])] = world.engine.brought
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) == 1024 * 1024


async def test_what_is_no_picture_is_asked_for_elsewhere(world: World) -> None:
    with pytest.raises(EngineError, match="there is no such adapter"):
        await bring(world.engine, b"x")
