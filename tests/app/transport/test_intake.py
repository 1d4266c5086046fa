"""How much of bodies is held that are on their way."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx
import pytest

from app.transport.bounds import INLINE_BYTES, Bounds
from app.transport.intake import Intake
from app.wire.errors import ApiError
from tests.app.conftest import MODEL, World

_LONG = 64 * 1024
_BOUNDS = Bounds(max_body_bytes=_LONG, max_incoming_bytes=4 * _LONG)


def test_a_tenant_may_fill_its_share_of_the_room_and_others_theirs() -> None:
    intake = Intake(_BOUNDS)
    with contextlib.ExitStack() as held:
        for tenant in "abcd":
            held.enter_context(intake.body(tenant)).grow(_LONG)
        for tenant in "ae":
            with intake.body(tenant) as refused, pytest.raises(ApiError) as error:
                refused.grow(INLINE_BYTES + 1)
            assert (error.value.status, error.value.code) == (429, "queue_full")
            with intake.body(tenant) as short:
                short.grow(INLINE_BYTES)
    with intake.body("a") as body:
        body.grow(_LONG)


@pytest.mark.parametrize("limits", [_BOUNDS])
async def test_bodies_that_never_end_leave_room_for_others(world: World) -> None:
    host, port = world.base_url.removeprefix("http://").split(":")
    head = "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"authorization: {world.headers()['authorization']}\r\ncontent-length: {_LONG}\r\n\r\n"
    _, unfinished = await asyncio.open_connection(host, int(port))
    unfinished.write(head.encode() + b" " * (_LONG - 1))
    body = json.dumps({"model": MODEL, "input": "Hi", "max_output_tokens": 2})
    long = " " * (_LONG - len(body)) + body

    async def status(tenant: str, content: str) -> int:
        headers = world.headers(tenant) | {"content-type": "application/json"}
        url = f"{world.base_url}/v1/responses"
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            return (await client.post(url, content=content, headers=headers)).status_code

    try:
        async with asyncio.timeout(10):
            while await status("acme", long) != 429:  # noqa: ASYNC110 - the server reads
                await asyncio.sleep(0.01)
        assert await status("acme", body) == 200
        assert await status("umbra", long) == 200
        unfinished.close()
        async with asyncio.timeout(10):
            while await status("acme", long) != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        unfinished.close()
