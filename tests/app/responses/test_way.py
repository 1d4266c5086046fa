"""The way of one request on a socket, as the documentation tells it: watched while it is served."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from app.transport.websocket_protocol import WebSocketProtocol
from tests.app.conftest import MODEL, World
from tests.app.pooled_engine import PooledEngine

PROJECT = Path(__file__).parents[3]
MOST = 24
BESIDE = ("Supervisor.", "Connections._review")
DELTA = b"response.output_text.delta"


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    engine._info = engine._expected = replace(engine.info, has_grammars=True)  # as real ones have
    yield engine
    await engine.close()


def module_of(frame: FrameType) -> str | None:
    """The module of ours that a function is in, as a path."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(PROJECT):
        return None
    inside = path.relative_to(PROJECT)
    return str(inside) if inside.parts[0] in ("app", "engine", "tenants") else None


class Watch:
    """Which modules call into others, from a frame's arrival to the first delta's."""

    def __init__(self) -> None:
        self.is_armed = False
        self.is_on = False
        self.passing: set[str] = set()
        self._known: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (called := module_of(frame)) is None:
            return
        if self._known.get(id(frame)) is frame:
            return  # it goes on: it was called before
        self._known[id(frame)] = frame
        above, caller = frame.f_back, None
        while above is not None:
            if above.f_code.co_qualname.startswith(BESIDE):
                return  # it runs beside requests
            caller = caller or module_of(above)
            above = above.f_back
        if self.is_on and caller not in (None, called):
            self.passing.add(str(caller))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()

    def begins(method: Callable[..., Any], protocol: WebSocketProtocol, data: bytes) -> None:
        watch.is_on = watch.is_armed
        method(protocol, data)

    def ends(method: Callable[..., Any], protocol: WebSocketProtocol, message: bytes) -> bool:
        was_written = bool(method(protocol, message))
        if watch.is_on and DELTA in message:
            watch.is_armed = watch.is_on = False
        return was_written

    for name, around in (("data_received", begins), ("write_text", ends)):
        method = getattr(WebSocketProtocol, name)

        def wrapped(*given: Any, around: Any = around, method: Any = method) -> Any:
            return around(method, *given)

        monkeypatch.setattr(WebSocketProtocol, name, wrapped)
    return watch


async def test_a_request_passes_the_modules_that_are_documented(world: World, watch: Watch) -> None:
    before, ways = sys.getprofile(), list[set[str]]()
    sys.setprofile(watch)
    try:
        async with world.client().responses.connect() as socket, asyncio.timeout(20):
            for watch.is_armed in (False, True, True, True):  # the first one has much to find out
                watch.passing = set()
                await socket.response.create(
                    model=MODEL, input="hello", max_output_tokens=20, store=False
                )
                async for event in socket:
                    if event.type in ("response.completed", "response.incomplete"):
                        break
                ways.append(watch.passing)
    finally:
        sys.setprofile(before)
    told = (PROJECT / "docs/service.md").read_text().partition("## Over HTTP")[0]
    documented = re.findall(r"^\| \d+ \| `([\w/.]+)`", told, re.MULTILINE)
    always = set.intersection(*ways[1:])  # what runs beside them does not each time
    passed = {one for one in always if not one.startswith("engine/")}
    assert sorted(passed) == sorted(documented)
    assert len(documented) <= MOST
