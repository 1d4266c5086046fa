"""One line for a request, one for a socket: figures and ids, never what somebody has said."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from openai import AsyncOpenAI

from tests.app.conftest import ADMIN_TOKEN, MODEL, World, eventually
from tests.app.observe.conftest import Log
from tests.app.responses.test_responses_ws import socket

SECRET = "marzipan"
"""In prompts, in names of fields, in answers, wherever a client may write."""


async def post(world: World, path: str, body: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        return await http.post(path, json=body)


async def test_a_request_has_one_line_with_its_figures(world: World, log: Log) -> None:
    world.engine.answer = "Hello"
    answer = await post(world, "/v1/responses", {"input": "hi"})
    assert answer.status_code == 200, answer.text
    line = await log.line("request")
    tenant = world.tenants["acme"]
    key = await world.stores.tenants.authenticate(world.keys["acme"])
    assert key is not None
    usage = answer.json()["usage"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["response_id"] == answer.json()["id"]
    assert (line["tenant"], line["key"], line["path"]) == (tenant.id, key.key.id, "/v1/responses")
    assert (line["level"], line["logger"], line["finish"]) == ("info", "app.requests", "stop")
    assert line["prompt_tokens"] == usage["input_tokens"]
    assert line["output_tokens"] == usage["output_tokens"]
    assert 0 < line["ttft_ms"] <= line["duration_ms"]
    assert 0 < line["itl_ms"] <= line["duration_ms"]
    assert len(log.lines("request")) == 1


async def test_cached_tokens_are_told(world: World, log: Log) -> None:
    text = "a long way to say the same thing " * 3
    for _ in range(2):
        await post(world, "/v1/responses", {"input": text})
    assert (await log.line("request", 1))["cached_tokens"] == 0
    assert (await log.line("request", 2))["cached_tokens"] > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_chat_completions_have_the_same_line(world: World, log: Log, stream: bool) -> None:
    messages = [{"role": "user", "content": "hi"}]
    await post(
        world, "/v1/chat/completions", {"model": MODEL, "messages": messages, "stream": stream}
    )
    line = await log.line("request")
    assert (line["path"], line["finish"]) == ("/v1/chat/completions", "stop")


async def test_what_is_refused_has_a_line_with_its_code_and_duration(
    world: World, log: Log
) -> None:
    answer = await post(world, "/v1/responses", {"input": "hi", "model": "gpt"})
    line = await log.line("request")
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["status"], line["code"]) == ("POST", 404, "model_not_found")
    assert line["duration_ms"] > 0
    assert line["tenant"] == world.tenants["acme"].id


async def test_a_failure_of_the_engine_is_a_warning_with_a_code(world: World, log: Log) -> None:
    world.engine.die_after = 2
    answer = await post(world, "/v1/responses", {"input": "hi"})
    assert answer.status_code == 500
    line = await log.line("request")
    assert (line["level"], line["finish"], line["code"]) == ("warning", "error", "server_error")
    assert line["output_tokens"] == 2


async def test_who_leaves_is_told_of_as_well(world: World, log: Log) -> None:
    world.engine.hold_after = 1
    asking = asyncio.create_task(post(world, "/v1/responses", {"input": "hi"}))
    await eventually(lambda: bool(world.engine.holding))
    asking.cancel()
    line = await log.line("request")
    assert (line["finish"], line["output_tokens"]) == ("cancelled", 1)


async def test_a_completion_that_nobody_reads_on_is_abandoned(world: World, log: Log) -> None:
    world.engine.hold_after = 1
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    asking = asyncio.create_task(post(world, "/v1/chat/completions", body))
    await eventually(lambda: bool(world.engine.holding))
    asking.cancel()
    assert (await log.line("request"))["finish"] == "abandoned"


async def test_a_socket_has_a_line_and_so_has_each_of_its_responses(world: World, log: Log) -> None:
    async with socket(world) as ws:
        assert ws.connection.response is not None
        request_id = ws.connection.response.headers["x-request-id"]
        await ws.create("one")
        await ws.turn()
        await ws.create("two", model="gpt")
        await ws.error()
        await ws.send({"type": "what"})
        await ws.error()
    line = await log.line("socket")
    assert (line["request_id"], line["tenant"]) == (request_id, world.tenants["acme"].id)
    assert (line["close_code"], line["responses"], line["refused"]) == (1000, 1, 2)
    first, second = log.lines("request")
    assert first["request_id"] == second["request_id"] == request_id
    assert (first["finish"], second["code"]) == ("stop", "model_not_found")


async def test_a_refused_handshake_has_a_line(world: World, log: Log) -> None:
    with pytest.raises(Exception, match="401"):
        async with socket(world, additional_headers={}):
            pass
    line = await log.line("request")
    assert (line["path"], line["status"], line["code"]) == (
        "/v1/responses",
        401,
        "invalid_api_key",
    )


async def test_probes_are_logged_only_where_they_fail(world: World, log: Log) -> None:
    async with httpx.AsyncClient(base_url=world.base_url) as http:
        assert (await http.get("/readyz")).status_code == 200
        world.engine.down = True
        assert (await http.get("/readyz")).status_code == 503
    line = await log.line("request")
    assert (line["level"], line["path"], line["status"]) == ("warning", "/readyz", 503)
    assert len(log.lines("request")) == 1


async def test_neither_texts_nor_keys_are_logged(
    world: World, admin: httpx.AsyncClient, log: Log
) -> None:
    world.engine.answer = f"the {SECRET} is in the oven"
    refused = [
        {"input": SECRET, SECRET: 1},
        {"input": SECRET, "metadata": {SECRET: {}}},
        {"input": SECRET, "model": SECRET},
        {"input": SECRET, "prompt": {"id": SECRET}},
        {"input": SECRET, "previous_response_id": SECRET},
        {"input": [{"type": SECRET}]},
        {"input": SECRET, "user": [SECRET]},
        {"input": SECRET, "text": {"format": {"type": SECRET}}},
    ]
    for body in refused:
        assert (await post(world, "/v1/responses", body)).status_code >= 400
    for body in ({"input": SECRET}, {"input": SECRET, "user": SECRET, "store": True}):
        assert (await post(world, "/v1/responses", body)).status_code == 200
    wrong = AsyncOpenAI(base_url=f"{world.base_url}/v1", api_key=f"sk-{SECRET}", max_retries=0)
    with pytest.raises(Exception, match="401"):
        await wrong.responses.create(model=MODEL, input="hi")
    await wrong.close()
    world.engine.die_after = 1
    await post(world, "/v1/responses", {"input": SECRET})
    world.engine.die_after = None
    async with socket(world) as ws:
        for message in ({"type": SECRET}, {"type": "response.create", SECRET: SECRET}):
            await ws.send(message)
            await ws.error()
        await ws.create(SECRET, stream_id=SECRET)
        await ws.turn()
    assert (await admin.post("/tenants", json={"id": SECRET, "limits": SECRET})).is_error
    await log.line("socket")
    # Eight refused, two answered, one without a key, one that failed, one on the socket, one admin.
    await log.line("request", 14)
    for secret in (SECRET, ADMIN_TOKEN, *world.keys.values()):
        assert secret not in log.text
