"""The id of a request: in its answer, and in what is logged for it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.responses.render import ResponseRenderer
from tests.app.conftest import World
from tests.app.observe.conftest import Log
from tests.app.responses.test_responses_ws import socket
from tests.app.transport.raw import stranger

BROKE_OFF = "the stream of a response broke off"


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every response breaks off while it is rendered."""

    def broken(*_: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(ResponseRenderer, "growth", broken)


@pytest.mark.usefixtures("bug")
async def test_what_fails_is_logged_under_the_id_that_the_client_was_told(
    world: World, log: Log
) -> None:
    chosen = "req_" + "0" * 32
    headers = world.headers() | {"x-request-id": chosen}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        answer = await http.post("/v1/responses", json={"input": "x"})
    assert answer.status_code == 500
    line = await log.line(BROKE_OFF)
    assert line["request_id"] == answer.headers["x-request-id"] != chosen
    assert line["client_request_id"] == answer.headers["x-client-request-id"] == chosen
    assert "LookupError: a bug" in line["exception"]


@pytest.mark.usefixtures("bug")
async def test_a_socket_has_an_id_as_well(world: World, log: Log) -> None:
    async with socket(world) as ws:
        assert ws.connection.response is not None
        request_id = ws.connection.response.headers["x-request-id"]
        await ws.create("one")
        await ws.turn()
    assert (await log.line(BROKE_OFF))["request_id"] == request_id


@pytest.mark.parametrize("id_", ["a b", "é", "x" * 129, ""])
async def test_an_id_that_does_not_fit_in_a_line_is_not_taken(
    world: World, log: Log, id_: str
) -> None:
    headers = world.headers() | {"x-client-request-id": id_.encode()}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        answer = await http.get("/v1/models")
    assert answer.status_code == 200
    assert "x-client-request-id" not in answer.headers
    assert "client_request_id" not in await log.line("request")


async def test_the_trace_that_a_client_names_is_in_the_line(world: World, log: Log) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    for parent in (f"00-{trace}-b7ad6b7169203331-01", f"00-{trace.upper()}-marzipan-01"):
        headers = world.headers() | {"traceparent": parent}
        async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
            assert (await http.get("/v1/models")).status_code == 200
    assert (await log.line("request", 1))["trace_id"] == trace
    assert "trace_id" not in await log.line("request", 2)


async def test_what_is_no_request_is_answered_and_logged_under_an_id(
    world: World, log: Log
) -> None:
    async with stranger(world.base_url) as peer:
        peer.send(b"POST / HTTP/1.1\r\nsecret words\r\n\r\n")
        answer = await peer.answer()
    line = await log.line("request")
    assert f"x-request-id: {line['request_id']}\r\n".encode() in answer
    assert (line["status"], line["code"]) == (400, "invalid_value")
    assert "secret" not in log.text
