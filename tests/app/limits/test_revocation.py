"""What clients see of the end of their key or their tenant, and of one socket too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets
from msgspec.structs import replace

from app.limits.connections import Connected
from tests.app.conftest import MODEL, World, eventually


async def test_a_revoked_keys_socket_hears_how_its_streams_end_and_is_closed(world: World) -> None:
    world.engine.hold_after = 3
    _, second = await world.stores.tenants.create_key("acme", "second")
    create = json.dumps({"type": "response.create", "model": MODEL, "input": "hello"})
    sockets = [
        await websockets.connect(
            world.ws_url, additional_headers={"authorization": f"Bearer {key}"}
        )
        for key in (world.keys["acme"], second)
    ]
    for socket in sockets:
        await socket.send(create)
    await eventually(lambda: len(world.engine.active) == 2)
    await revoke_first_key(world)
    doomed = [json.loads(message) async for message in until_closed(sockets[0])]
    assert doomed[-1]["type"] == "response.failed"
    assert doomed[-1]["response"]["error"]["code"] == "invalid_api_key"
    assert (sockets[0].close_code, sockets[0].close_reason) == (
        1008,
        "This API key is no longer valid.",
    )
    await eventually(lambda: len(world.engine.active) == 1)
    world.engine.release()
    async for message in sockets[1]:
        if json.loads(message)["type"] == "response.completed":
            break
    await sockets[1].close()
    assert world.app.state.service.connections.snapshot() == {}


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
async def test_a_revoked_keys_streams_over_http_end_with_the_error(world: World, path: str) -> None:
    world.engine.hold_after = 3
    async with (
        httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http,
        asyncio.TaskGroup() as group,
    ):
        asked = http.post(f"/v1/{path}", json=body_for(path, stream=True))
        streamed = group.create_task(asked)
        whole = group.create_task(http.post(f"/v1/{path}", json=body_for(path)))
        await eventually(lambda: len(world.engine.active) == 2)
        await revoke_first_key(world)
    assert streamed.result().status_code == 200
    assert '"invalid_api_key"' in streamed.result().text
    assert whole.result().status_code == 401
    assert whole.result().json()["error"]["code"] == "invalid_api_key"


async def test_a_disabled_tenants_compaction_ends_with_the_error(world: World) -> None:
    world.engine.hold_after = 3
    body = {"model": MODEL, "input": "hello"}
    async with (
        httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http,
        asyncio.TaskGroup() as group,
    ):
        compacting = group.create_task(http.post("/v1/responses/compact", json=body))
        await eventually(lambda: len(world.engine.active) == 1)
        await world.stores.tenants.update_tenant(
            "acme", lambda tenant: replace(tenant, status="disabled")
        )
    assert compacting.result().status_code == 403
    assert compacting.result().json()["error"]["code"] == "tenant_disabled"


async def test_one_socket_too_many_is_refused_and_counts_no_more_once_one_has_closed(
    world: World,
) -> None:
    await world.limit("acme", sockets=2)
    headers = world.headers()
    first = await websockets.connect(world.ws_url, additional_headers=headers)
    second = await websockets.connect(world.ws_url, additional_headers=headers)
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(world.ws_url, additional_headers=headers)
    assert refused.value.response.status_code == 429
    assert "retry-after" in refused.value.response.headers
    await first.close()
    connections = world.app.state.service.connections
    await eventually(lambda: connections.snapshot()["acme"] == Connected(sockets=1, streams=0))
    third = await websockets.connect(world.ws_url, additional_headers=headers)
    await second.close()
    await third.close()


async def revoke_first_key(world: World) -> None:
    keys = await world.stores.tenants.list_keys("acme")
    first = next(key for key in keys if key.name == "default")
    await world.stores.tenants.revoke_key("acme", first.id)


async def until_closed(socket: websockets.ClientConnection) -> AsyncIterator[str | bytes]:
    async with asyncio.timeout(10):
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                yield await socket.recv()


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    if path == "responses":
        return {"model": MODEL, "input": "hello", **fields}
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}
