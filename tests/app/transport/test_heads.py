"""What a head says is enough to refuse a request, before any of its body is read."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.app.conftest import ADMIN_TOKEN, World
from tests.app.transport.raw import stranger

LARGE = 4 * 1024 * 1024 + 1


def head(path: str, token: str, *lines: str) -> bytes:
    given = [f"POST {path} HTTP/1.1", "Host: a", f"Authorization: Bearer {token}"]
    return "\r\n".join([*given, "Content-Type: application/json", *lines, "", ""]).encode()


@pytest.mark.parametrize("expect", [["Expect: 100-continue"], []])
async def test_a_body_that_will_be_too_large_is_refused_before_it_is_sent(
    world: World, expect: list[str]
) -> None:
    length = f"Content-Length: {LARGE}"
    async with stranger(world.base_url) as peer:
        peer.send(head("/v1/responses", world.keys["acme"], length, *expect))
        answer, _, body = (await peer.answer()).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in answer
        assert json.loads(body)["error"]["code"] == "body_too_large"
        assert await peer.rest() == b""
    async with stranger(world.admin_url) as peer:
        peer.send(head("/admin/tenants", ADMIN_TOKEN, length, *expect))
        answer, _, body = (await peer.answer()).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"application/problem+json" in answer
        assert json.loads(body)["code"] == "body_too_large"


async def test_the_refusal_can_be_read_though_the_body_is_on_its_way(world: World) -> None:
    for _ in range(5):
        async with stranger(world.base_url) as peer:
            peer.send(head("/v1/responses", world.keys["acme"], f"Content-Length: {LARGE}"))
            for _ in range(60):
                peer.send(bytes(65_536))
            assert await peer.status() == 413


async def test_one_that_fits_is_asked_for(world: World) -> None:
    body = b'{"input": "hello"}'
    lines = (f"Content-Length: {len(body)}", "Expect: 100-continue")
    async with stranger(world.base_url) as peer:
        peer.send(head("/v1/responses", world.keys["acme"], *lines))
        assert await peer.status() == 100
        peer.send(body)
        assert await peer.status() == 200


@pytest.mark.parametrize("second", ["Bearer another", ""])
async def test_two_authorization_headers_are_refused_by_name(world: World, second: str) -> None:
    lines = (f"authorization: {second}", "Content-Length: 0")
    async with stranger(world.base_url) as peer:
        peer.send(head("/v1/responses", world.keys["acme"], *lines))
        answer, _, body = (await peer.answer()).partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert answer.startswith(b"HTTP/1.1 400")
    assert (error["param"], error["code"]) == ("authorization", "invalid_value")
    for path in ("/admin/tenants", "/metrics"):
        async with stranger(world.admin_url) as peer:
            peer.send(head(path, ADMIN_TOKEN, *lines).replace(b"POST /m", b"GET /m"))
            answer, _, body = (await peer.answer()).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert "Authorization" in json.loads(body)["detail"]


async def test_two_authorization_headers_of_a_handshake_are_refused(world: World) -> None:
    key = ("Authorization", f"Bearer {world.keys['acme']}")
    with pytest.raises(InvalidStatus) as refused:
        async with connect(world.ws_url, additional_headers=[key, key], proxy=None):
            pass
    assert refused.value.response.status_code == 400
