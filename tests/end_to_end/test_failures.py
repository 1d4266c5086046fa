"""What a client sees when the engine dies or its own reader leaves, with the real program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import psutil
from websockets.asyncio.client import ClientConnection

from bench.common.service import Service
from tests.end_to_end.test_exactness import ask, metric, open_socket

PATIENCE_SECONDS = 240
LONG = {"ignore_eos": True, "max_output_tokens": 400}


def engine_process(service: Service) -> psutil.Process:
    children = psutil.Process(service.pid).children(recursive=True)
    return next(child for child in children if "engine.assembly.process" in child.cmdline())


def is_idle(service: Service) -> bool:
    return metric(service, 'partywall_kv_blocks{state="in_use"}') == 0


def is_ready(service: Service) -> bool:
    return httpx.get(f"{service.url}/readyz", trust_env=False).status_code == 200


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; it must in time, however busy the machine is."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is anything, not an event
            await asyncio.sleep(0.1)


async def running_stream(socket: ClientConnection, max_output_tokens: int = 400) -> str:
    """Start a long answer; returns its id at its first text."""
    body = {"input": "Count to 900.", "ignore_eos": True, "max_output_tokens": max_output_tokens}
    await socket.send(json.dumps({"type": "response.create", **body}))
    created = event = json.loads(await socket.recv())
    while event["type"] != "response.output_text.delta":
        event = json.loads(await socket.recv())
    return str(created["response"]["id"])


async def test_readers_that_leave_for_good_free_their_blocks(
    service: Service, api_key: str
) -> None:
    headers = {"authorization": f"Bearer {api_key}"}
    body = {"input": "Count to 900.", **LONG}
    abandoned = []
    async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as client:
        socket = await open_socket(service, api_key)
        abandoned.append(await running_stream(socket))
        assert not is_idle(service)
        socket.transport.abort()
        await until(lambda: is_idle(service))
        streamed = {**body, "stream": True}
        async with client.stream("POST", "/v1/responses", json=streamed) as response:
            lines = response.aiter_lines()
            await anext(lines)
            created = json.loads((await anext(lines)).removeprefix("data: "))
            abandoned.append(created["response"]["id"])
        await until(lambda: is_idle(service))
        whole = asyncio.create_task(client.post("/v1/responses", json=body, timeout=60))
        await until(lambda: not is_idle(service))
        whole.cancel()
        await asyncio.gather(whole, return_exceptions=True)
        await until(lambda: is_idle(service))
        for response_id in abandoned:
            response = await client.get(f"/v1/responses/{response_id}")
            assert response.json()["status"] == "cancelled"
    assert metric(service, "partywall_engine_invariant_violations_total") == 0


async def test_a_killed_engine_lets_its_streams_wait_and_comes_back(
    service: Service, api_key: str
) -> None:
    async with open_socket(service, api_key) as socket:
        before = await ask(socket, "Name three rivers.")
        await running_stream(socket, max_output_tokens=60)
        engine_process(service).kill()
        await until(lambda: not is_ready(service))
        while (event := json.loads(await socket.recv()))["type"] != "response.incomplete":
            assert event["type"] not in ("error", "response.failed"), event
        assert event["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert event["response"]["usage"]["output_tokens"] == 60
        assert is_ready(service)
        after = await ask(socket, "Name three rivers.")
    assert after["output"][0]["content"] == before["output"][0]["content"]
