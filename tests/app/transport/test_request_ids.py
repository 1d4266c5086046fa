"""The id of a request: in its answer, and in what is logged for it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.responses.render import ResponseRenderer
from app.transport import request_ids
from tests.app.conftest import World
from tests.app.responses.test_responses_ws import socket


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the service logs, as `partywall serve` has it."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers.clear()
    written = io.StringIO()
    request_ids.log_to(written)
    yield written
    root.handlers[:] = before


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every response breaks off while it is rendered."""

    def broken(*_: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(ResponseRenderer, "growth", broken)


@pytest.mark.usefixtures("bug")
async def test_what_fails_is_logged_under_the_id_that_the_client_was_told(
    world: World, log: io.StringIO
) -> None:
    forged = "req_" + "0" * 32
    headers = world.headers() | {"x-request-id": forged}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        answer = await http.post("/v1/responses", json={"input": "x"})
    assert answer.status_code == 500
    written = log.getvalue()
    assert f"[{answer.headers['x-request-id']}]: the stream of a response broke off" in written
    assert forged not in written


@pytest.mark.usefixtures("bug")
async def test_a_socket_has_an_id_as_well(world: World, log: io.StringIO) -> None:
    async with socket(world) as ws:
        assert ws.connection.response is not None
        request_id = ws.connection.response.headers["x-request-id"]
        await ws.create("one")
        await ws.turn()
    assert f"[{request_id}]: the stream of a response broke off" in log.getvalue()
