"""Pages of other origins: what browsers are told about them, and which of their sockets open."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.settings import Settings
from app.transport.bounds import Bounds
from tests.app.conftest import World

PAGE = "https://chat.example.com"
ELSEWHERE = "https://evil.example.com"
listed = pytest.mark.parametrize("limits", [Bounds(page_origins=(PAGE,))])


async def preflight(world: World, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os",
    }
    async with httpx.AsyncClient(base_url=world.base_url) as http:
        return await http.options("/v1/responses", headers=headers)


async def ask(world: World, origin: str) -> httpx.Response:
    headers = world.headers() | {"origin": origin}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        return await http.post("/v1/responses", json={"input": "hello", "stream": True})


@listed
async def test_pages_of_a_listed_origin_may_call(world: World) -> None:
    answer = await preflight(world, PAGE)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    streamed = await ask(world, PAGE)
    assert streamed.headers["access-control-allow-origin"] == PAGE
    assert "retry-after" in streamed.headers["access-control-expose-headers"]
    refused = await ask(world, ELSEWHERE)
    assert "access-control-allow-origin" not in refused.headers
    assert (await preflight(world, ELSEWHERE)).status_code == 400


async def test_without_a_list_browsers_are_told_nothing(world: World) -> None:
    assert (await preflight(world, PAGE)).status_code == 405
    assert "access-control-allow-origin" not in (await ask(world, PAGE)).headers
    async with connect(world.ws_url, additional_headers=world.headers(), origin=PAGE):
        pass


@listed
async def test_sockets_of_pages_elsewhere_are_refused(world: World) -> None:
    for origin in (PAGE, world.base_url, None):
        async with connect(world.ws_url, additional_headers=world.headers(), origin=origin):
            pass
    for elsewhere in (ELSEWHERE, "http://["):
        with pytest.raises(InvalidStatus) as refused:
            await connect(world.ws_url, additional_headers=world.headers(), origin=elsewhere)
        assert refused.value.response.status_code == 403
        assert b"origin_not_allowed" in refused.value.response.body


@pytest.mark.parametrize("origins", ["example.com", "https://a.example/", "https://a b", "*,x"])
def test_what_is_no_origin_is_refused(origins: str) -> None:
    with pytest.raises(ValidationError, match="is no origin"):
        Settings(allowed_origins=origins)
