"""Who sends no more and still reads gets the answer; who has left is found out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.transport.bounds import Bounds
from app.transport.half_closed import PROCESSING
from tests.app.conftest import MODEL, World, eventually

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"model": MODEL, "messages": MESSAGES}
ASKED = {
    "/v1/responses": {"model": MODEL, "input": "hello"},
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions?stream": CHAT | {"stream": True},
    "/v1/responses?stream": {"model": MODEL, "input": "hello", "stream": True},
}


@pytest.fixture
def limits() -> Bounds:
    """A response whose reader has left is not kept for long."""
    return Bounds(resume_grace_seconds=0.05)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(world: World) -> AsyncIterator[Streams]:
    host, port = world.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request(world: World, path: str, body: Any, version: str = "1.1") -> bytes:
    content = json.dumps(body).encode()
    return (
        f"POST {path.partition('?')[0]} HTTP/{version}\r\nHost: a\r\n"
        f"Authorization: Bearer {world.keys['acme']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the service has closed, without what says that it is at work."""
    async with asyncio.timeout(10):
        return (await reader.read()).replace(PROCESSING, b"")


@pytest.mark.parametrize("path", ASKED)
async def test_a_whole_request_is_answered_though_its_client_sends_no_more(
    world: World, path: str
) -> None:
    world.engine.hold_after = 1
    async with connected(world) as (reader, writer):
        writer.write(request(world, path, ASKED[path]))
        writer.write_eof()
        await eventually(lambda: bool(world.engine.holding))
        await asyncio.sleep(0.3)  # it is probed meanwhile
        assert world.engine.active
        world.engine.release()
        answer = await rest(reader)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if "stream" in path else b"}")
    assert not world.engine.active


@pytest.mark.parametrize("path", ASKED)
async def test_who_has_left_is_found_out_before_the_answer_is_there(
    world: World, path: str
) -> None:
    world.engine.hold_after = 1
    async with connected(world) as (_, writer):
        writer.write(request(world, path, ASKED[path]))
        await eventually(lambda: bool(world.engine.holding))
        writer.close()  # the service sees what it sees of a peer that closes half
        await eventually(lambda: not world.engine.active)


async def test_requests_behind_each_other_are_all_answered(world: World) -> None:
    world.engine.hold_after = 1
    one, other = (request(world, path, ASKED[path]) for path in list(ASKED)[:2])
    async with connected(world) as (reader, writer):
        writer.write(one + other)
        writer.write_eof()
        await eventually(lambda: bool(world.engine.holding))
        world.engine.hold_after = None
        world.engine.release()
        assert (await rest(reader)).count(b"HTTP/1.1 200") == 2


async def test_a_request_that_is_cut_off_gets_no_answer(world: World) -> None:
    async with connected(world) as (reader, writer):
        writer.write(request(world, "/v1/responses", ASKED["/v1/responses"])[:-1])
        writer.write_eof()
        assert await rest(reader) == b""
    assert not world.engine.requests


async def test_http_1_0_knows_no_halves(world: World) -> None:
    world.engine.hold_after = 1
    async with connected(world) as (reader, writer):
        writer.write(request(world, "/v1/responses", ASKED["/v1/responses"], "1.0"))
        await eventually(lambda: bool(world.engine.holding))
        writer.write_eof()
        assert await rest(reader) == b""
        await eventually(lambda: not world.engine.active)
