"""Responses whose process is gone: they have failed, and say so."""

from __future__ import annotations

import json

import pytest
from httpx import AsyncClient

from tenants.stored import running
from tenants.stored.running import RunningResponses
from tests.app.conftest import World
from tests.app.responses.test_responses_ws import socket
from tests.app.responses.test_resume import http, rest_by_socket

__all__ = ["http"]


async def test_a_response_whose_process_is_gone_has_failed_and_can_be_deleted(
    world: World, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_GONE_SECONDS", 0.05)
    world.engine.hold_after = 3
    answer = await http.post("/v1/responses", json={"input": "x", "background": True})
    body = answer.json()
    response_id, path = body["id"], f"/v1/responses/{body['id']}"
    responses, here = world.app.state.service.responses, world.app.state.service.stores.running
    dead = RunningResponses(here._redis, here._keyring, process_seconds=0.001)
    gone = "resp_gone"
    dead.note_begin("acme", gone, answer.content.replace(response_id.encode(), gone.encode()))
    assert await dead._write()
    gone_path = path.replace(response_id, gone)

    found = (await http.get(gone_path)).json()
    assert (found["id"], found["status"], found["error"]["code"]) == (
        gone,
        "failed",
        "response_lost",
    )
    streamed = await http.get(gone_path, params={"stream": "true", "starting_after": "3"})
    assert (streamed.status_code, streamed.json()["error"]["code"]) == (410, "response_lost")
    async with socket(world) as ws:
        [event] = await rest_by_socket(ws, gone)
        assert (event["type"], event["error"]["code"]) == ("error", "response_lost")
    assert (await http.post(f"{gone_path}/cancel")).status_code == 400
    follow = await http.post("/v1/responses", json={"input": "y", "previous_response_id": gone})
    assert follow.status_code == 400
    assert (await http.delete(gone_path)).json()["deleted"]
    assert (await http.get(gone_path)).status_code == 404

    assert responses.running(world.tenants["acme"], response_id) is not None
    assert (await http.get(path)).json()["status"] == "in_progress"


async def test_a_response_that_was_suspended_before_its_process_was_killed_is_interrupted(
    world: World, http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_GONE_SECONDS", 0.05)
    answer = await http.post("/v1/responses", json={"input": "x"})
    stores = world.app.state.service.stores
    dead = RunningResponses(world.redis, stores.running._keyring, process_seconds=0.001)
    begun = answer.json() | {"id": "resp_gone", "status": "in_progress", "output": []}
    dead.note_begin("acme", "resp_gone", json.dumps(begun).encode())
    assert await dead._write()
    await stores.suspended.save("acme", "resp_gone", b"to go on from", 60)
    for _ in range(2):
        found = (await http.get("/v1/responses/resp_gone")).json()
        assert found["status"] == "incomplete"
        assert found["incomplete_details"] == {"reason": "service_restart"}
    assert await stores.suspended.holds("acme", "resp_gone")
