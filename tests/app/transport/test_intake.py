"""How much of bodies is held that are on their way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from app.transport.bodies import Intake
from app.transport.bounds import INLINE_BYTES, Bounds
from app.wire.errors import ApiError
from tests.app.conftest import MODEL, World, eventually

_LONG = 64 * 1024
_BOUNDS = Bounds(
    max_body_bytes=2 * _LONG,
    max_message_bytes=_LONG,
    max_image_bytes=2 * _LONG,
    max_incoming_bytes=4 * 2 * _LONG,
)


def held(world: World) -> int:
    return world.app.state.service.intake._held.total()


async def until_held(world: World, num_bytes: int) -> None:
    await eventually(lambda: held(world) >= num_bytes)


def test_a_tenant_may_fill_its_share_of_the_room_and_others_theirs() -> None:
    intake = Intake(_BOUNDS)
    with contextlib.ExitStack() as held:
        for tenant in "abcd":
            held.enter_context(intake.body(tenant)).grow(2 * _LONG)
        for tenant in "ae":
            with intake.body(tenant) as refused, pytest.raises(ApiError) as error:
                refused.grow(INLINE_BYTES + 1)
            assert (error.value.status, error.value.code) == (429, "queue_full")
            with intake.body(tenant) as short:
                short.grow(INLINE_BYTES)
    with intake.body("a") as body:
        body.grow(2 * _LONG)


@pytest.mark.parametrize("limits", [_BOUNDS])
async def test_bodies_that_never_end_leave_room_for_others(world: World) -> None:
    host, port = world.base_url.removeprefix("http://").split(":")
    head = "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += (
        f"authorization: {world.headers()['authorization']}\r\ncontent-length: {2 * _LONG}\r\n\r\n"
    )
    _, unfinished = await asyncio.open_connection(host, int(port))
    unfinished.write(head.encode() + b" " * (2 * _LONG - 1))
    body = json.dumps({"model": MODEL, "input": "Hi", "max_output_tokens": 2})
    long = " " * (2 * _LONG - len(body)) + body

    async def status(tenant: str, content: str) -> int:
        headers = world.headers(tenant) | {"content-type": "application/json"}
        url = f"{world.base_url}/v1/responses"
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            return (await client.post(url, content=content, headers=headers)).status_code

    try:
        # Sooner, and this one would be refused for the next one's sake.
        await until_held(world, 2 * _LONG - 1)
        assert await status("acme", long) == 429
        assert await status("acme", body) == 200
        assert await status("umbra", long) == 200
        unfinished.close()
        await eventually(lambda: not held(world))
        assert await status("acme", long) == 200
    finally:
        unfinished.close()


def test_what_is_let_go_of_makes_room() -> None:
    intake = Intake(_BOUNDS)
    socket, other = intake.body("a"), intake.body("a")
    socket.hold(2 * _LONG)
    with pytest.raises(ApiError):
        other.hold(INLINE_BYTES + 1)
    socket.hold(_LONG)
    other.hold(_LONG)
    socket.hold(0)
    other.hold(2 * _LONG)


def unfinished(text: str, missing: int) -> list[bytes]:
    """A masked text frame without its last bytes, and these."""
    frame = Frame(Opcode.TEXT, text.encode()).serialize(mask=True)
    return [frame[:-missing], frame[-missing:]]


def create(num_bytes: int) -> str:
    body = json.dumps({"type": "response.create", "input": "Hi"})
    return body + " " * (num_bytes - len(body))


@contextlib.asynccontextmanager
async def opened(world: World, tenant: str = "acme") -> AsyncIterator[ClientConnection]:
    headers = world.headers(tenant)
    async with connect(world.ws_url, additional_headers=headers, proxy=None) as socket:
        yield socket


async def turn(socket: ClientConnection) -> str:
    """The type of the last event of a response."""
    async with asyncio.timeout(10):
        while True:
            kind: str = json.loads(await socket.recv())["type"]
            if kind in ("error", "response.completed", "response.incomplete"):
                return kind


@pytest.mark.parametrize("limits", [_BOUNDS])
async def test_messages_that_never_end_leave_room_for_others(world: World) -> None:
    text = create(_LONG)
    async with contextlib.AsyncExitStack() as stack:
        half, half_too, late, short, other = [
            await stack.enter_async_context(opened(world, tenant))
            for tenant in ("acme", "acme", "acme", "acme", "umbra")
        ]
        begun, end = unfinished(text, 5)
        # Fragments are held as well as frames are.
        part = Frame(Opcode.TEXT, text[:-1].encode(), fin=False).serialize(mask=True)
        half.transport.write(begun)
        half_too.transport.write(part)
        await until_held(world, 2 * _LONG - 6)
        late.transport.write(begun)
        with pytest.raises(ConnectionClosed):
            await late.recv()
        assert late.close_code == 1013
        await short.send(create(INLINE_BYTES))
        assert await turn(short) == "response.completed"
        await other.send(text)
        assert await turn(other) == "response.completed"
        half_too.transport.abort()
        await eventually(lambda: held(world) < _LONG)
        half.transport.write(end)
        assert await turn(half) == "response.completed"
        await eventually(lambda: not held(world))
        await half.send(text)
        assert await turn(half) == "response.completed"


@pytest.mark.parametrize("limits", [_BOUNDS])
async def test_messages_that_wait_for_their_lane_leave_room_for_others(world: World) -> None:
    world.engine.hold_after = 1
    async with opened(world) as first, opened(world) as second, opened(world) as third:
        waiting = 0
        for socket, num_bytes in ((first, _LONG), (second, _LONG // 2)):
            await socket.send(create(200))
            await socket.send(create(num_bytes))
            waiting += num_bytes
            await until_held(world, waiting)
        # One is served, another is short, and the third fills the room.
        await third.send(create(INLINE_BYTES))
        assert json.loads(await third.recv())["type"] == "response.created"
        await eventually(lambda: held(world) == waiting)  # and nothing twice, as it is handed on
        for _ in range(3):
            await third.send(create(INLINE_BYTES))
        codes: list[str] = []
        async with asyncio.timeout(10):
            while "queue_full" not in codes:
                event = json.loads(await third.recv())
                codes.append(event.get("error", {}).get("code", ""))
        world.engine.release()
        for socket, turns in ((first, 2), (second, 2), (third, 3)):
            for _ in range(turns):
                assert await turn(socket) == "response.completed"
        await eventually(lambda: not held(world))
