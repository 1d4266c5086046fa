"""What a client sees when the engine dies or its own reader leaves, with the real program."""

from __future__ import annotations

import asyncio
import json

import httpx
import psutil
from websockets.asyncio.client import connect

from bench.service import Service
from tests.end_to_end.test_exactness import ask, metric, open_socket

LONG = {"ignore_eos": True, "max_output_tokens": 400}


def engine_process(service: Service) -> psutil.Process:
    children = psutil.Process(service.pid).children(recursive=True)
    return next(child for child in children if "engine.process" in child.cmdline())


async def until_idle(service: Service) -> None:
    """Wait until no block is in use."""
    for _ in range(100):
        if metric(service, 'partywall_kv_blocks{state="in_use"}') == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("blocks are still in use")


async def running_stream(socket: connect) -> None:
    """Start a long answer and return at its first text."""
    await socket.send(json.dumps({"type": "response.create", "input": "Count to 900.", **LONG}))
    while json.loads(await socket.recv())["type"] != "response.output_text.delta":
        pass


async def test_readers_that_leave_free_their_blocks(service: Service, api_key: str) -> None:
    socket = await open_socket(service, api_key)
    await running_stream(socket)
    assert metric(service, 'partywall_kv_blocks{state="in_use"}') > 0
    socket.transport.abort()
    await until_idle(service)
    headers = {"authorization": f"Bearer {api_key}"}
    body = {"input": "Count to 900.", **LONG}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as client:
        streamed = {**body, "stream": True}
        async with client.stream("POST", "/v1/responses", json=streamed) as response:
            await anext(response.aiter_lines())
        await until_idle(service)
        whole = asyncio.create_task(client.post("/v1/responses", json=body, timeout=60))
        while metric(service, 'partywall_kv_blocks{state="in_use"}') == 0:
            await asyncio.sleep(0.05)
        whole.cancel()
        await asyncio.gather(whole, return_exceptions=True)
    await until_idle(service)
    assert metric(service, "partywall_engine_invariant_violations") == 0


async def test_a_killed_engine_fails_its_streams_and_the_service_recovers(
    service: Service, api_key: str
) -> None:
    async with open_socket(service, api_key) as socket:
        before = await ask(socket, "Name three rivers.")
        await running_stream(socket)
        engine_process(service).kill()
        while (event := json.loads(await socket.recv()))["type"] != "response.failed":
            assert event["type"] != "error"
        assert event["response"]["error"]["code"] == "server_error"
        for _ in range(600):
            if httpx.get(f"{service.url}/readyz", trust_env=False).status_code == 200:
                break
            await asyncio.sleep(0.1)
        after = await ask(socket, "Name three rivers.")
    assert after["output"][0]["content"] == before["output"][0]["content"]
