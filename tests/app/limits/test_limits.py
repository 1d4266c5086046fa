"""What a tenant may take: refused by name beyond it, given back when it was not used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tenants.usage.prices import PriceList, Prices
from tests.app.conftest import ADMIN_TOKEN, MODEL, World, eventually

HELLO = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": HELLO}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "hello"}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE)]
RATE_HEADERS = {
    f"x-ratelimit-{what}-{kind}"
    for what in ("limit", "remaining", "reset")
    for kind in ("requests", "tokens")
}


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=world.base_url, headers=world.headers(), trust_env=False
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def open_socket(world: World) -> AsyncIterator[ClientConnection]:
    async with connect(world.ws_url, additional_headers=world.headers(), proxy=None) as socket:
        yield socket


async def create(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    """The last event of a response that is created on a socket."""
    await socket.send(json.dumps({"type": "response.create", **RESPONSE, **fields}))
    while True:
        event: dict[str, Any] = json.loads(await socket.recv())
        if event["type"] in ("error", "response.completed", "response.incomplete"):
            return event


def prompt_tokens(world: World) -> int:
    return len(world.engine.requests[-1].prompt)


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_tell_what_is_left(
    world: World, http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool
) -> None:
    await world.limit("acme", requests_per_minute=10, tokens_per_minute=1000)
    maximum = "max_tokens" if "messages" in body else "max_output_tokens"
    answer = await http.post(path, json={**body, maximum: 100, "stream": stream})
    assert answer.status_code == 200
    reserved = prompt_tokens(world) + 100
    assert answer.headers["x-ratelimit-limit-requests"] == "10"
    assert answer.headers["x-ratelimit-remaining-requests"] == "9"
    assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
    assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - reserved)
    assert answer.headers.keys() >= RATE_HEADERS


async def test_a_tenant_without_limits_is_told_of_none(
    world: World, http: httpx.AsyncClient
) -> None:
    answer = await http.post("/v1/responses", json=RESPONSE)
    assert answer.status_code == 200
    assert not RATE_HEADERS & answer.headers.keys()


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_one_request_too_many_is_a_429_that_says_when_to_come_back(
    world: World, http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool
) -> None:
    await world.limit("acme", requests_per_minute=2, tokens_per_minute=100_000)
    for _ in range(2):
        assert (await http.post(path, json=body)).status_code == 200
    refused = await http.post(path, json={**body, "stream": stream})
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert 29 <= int(refused.headers["retry-after"]) <= 30
    assert 29_000 < int(refused.headers["retry-after-ms"]) <= 30_000
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers.keys() >= RATE_HEADERS
    assert len(world.engine.requests) == 2


async def test_another_tenants_requests_do_not_count(world: World, http: httpx.AsyncClient) -> None:
    for name in ("acme", "umbra"):
        await world.limit(name, requests_per_minute=1)
    umbra = world.headers("umbra")
    assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 200
    assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 429
    assert (await http.post("/v1/responses", json=RESPONSE, headers=umbra)).status_code == 200


async def test_a_socket_gets_the_same_error_as_an_event_and_stays_open(world: World) -> None:
    await world.limit("acme", requests_per_minute=1)
    async with open_socket(world) as socket:
        assert (await create(socket))["type"] == "response.completed"
        refused = await create(socket, stream_id="other")
        assert (refused["type"], refused["status"]) == ("error", 429)
        assert refused["error"]["type"] == "rate_limit_error"
        assert refused["error"]["code"] == "rate_limit_exceeded"
        assert re.search(r"Try again in \d", refused["error"]["message"])
        assert refused["stream_id"] == "other"
        await world.limit("acme")
        async with asyncio.timeout(10):
            while (await create(socket))["type"] == "error":
                pass


async def test_the_openai_client_knows_the_error(world: World) -> None:
    await world.limit("acme", requests_per_minute=1)
    client = world.client()
    await client.responses.create(**RESPONSE)
    with pytest.raises(openai.RateLimitError) as refused:
        await client.responses.create(**RESPONSE)
    assert refused.value.code == "rate_limit_exceeded"


async def test_what_an_answer_did_not_use_is_given_back(
    world: World, http: httpx.AsyncClient
) -> None:
    await world.limit("acme", tokens_per_minute=1000)
    for _ in range(5):  # each reserves far more than a fifth of the bucket
        body = {**RESPONSE, "max_output_tokens": 700}
        assert (await http.post("/v1/responses", json=body)).status_code == 200
    body = {**RESPONSE, "max_output_tokens": 900}
    refused = await http.post("/v1/responses", json=body)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) < 60


async def test_an_answer_whose_reader_left_gives_back_what_it_did_not_use(world: World) -> None:
    await world.limit("acme", tokens_per_minute=1000, concurrent_streams=1)
    world.engine.hold_after = 2
    for _ in range(3):
        stream = await world.client().chat.completions.create(**CHAT, max_tokens=800, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await eventually(lambda: not world.engine.active)


async def test_a_request_that_leaves_before_its_first_token_pays_for_its_prompt(
    world: World, http: httpx.AsyncClient
) -> None:
    await world.limit("acme", tokens_per_day=1000)
    world.engine.hold_after = 0
    body = {**CHAT, "messages": [{"role": "user", "content": "a" * 300}], "max_tokens": 20}
    for left in (1, 2):
        leaving = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await eventually(lambda: len(world.engine.active) == 1)
        leaving.cancel()
        await eventually(lambda: not world.engine.active)
        await world.metered("acme", left, left * prompt_tokens(world))
    refused = await http.post("/v1/chat/completions", json={**body, "max_tokens": 400})
    assert refused.json()["error"]["code"] == "tokens_per_day_exceeded"


@pytest.mark.parametrize("tokens", [0, 3])
async def test_an_answer_that_the_engine_fails_costs_what_was_heard_of_it(
    world: World, http: httpx.AsyncClient, tokens: int
) -> None:
    world.engine.die_after = tokens
    assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 500
    world.engine.die_after = None
    whole = (await http.post("/v1/responses", json=RESPONSE)).json()["usage"]
    failed = prompt_tokens(world) + tokens if tokens else 0
    await world.metered("acme", 2 if tokens else 1, whole["total_tokens"] + failed)


async def test_more_than_a_whole_minute_can_never_pass(
    world: World, http: httpx.AsyncClient
) -> None:
    await world.limit("acme", tokens_per_minute=500)
    body = {**RESPONSE, "max_output_tokens": 500}
    refused = await http.post("/v1/responses", json=body)
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    fitting = {**RESPONSE, "max_output_tokens": 400}
    assert (await http.post("/v1/responses", json=fitting)).status_code == 200


async def test_a_day_has_its_own_budget(world: World, http: httpx.AsyncClient) -> None:
    await world.limit("acme", tokens_per_day=200)
    body = {**RESPONSE, "max_output_tokens": 20}
    statuses = [(await http.post("/v1/responses", json=body)).status_code for _ in range(12)]
    assert statuses[0] == 200
    refused = await http.post("/v1/responses", json=body)
    assert refused.json()["error"]["code"] == "tokens_per_day_exceeded"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400


async def test_concurrent_streams_are_counted_until_they_end(
    world: World, http: httpx.AsyncClient
) -> None:
    await world.limit("acme", concurrent_streams=2)
    world.engine.hold_after = 2
    running = [asyncio.create_task(http.post("/v1/responses", json=RESPONSE)) for _ in range(2)]
    await eventually(lambda: len(world.engine.active) == 2)
    refused = await http.post("/v1/responses", json=RESPONSE)
    assert refused.json()["error"]["code"] == "concurrent_streams_exceeded"
    assert "retry-after" in refused.headers
    world.engine.release()
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
    assert (await http.post("/v1/responses", json=RESPONSE)).status_code == 200


@pytest.mark.parametrize("extra", [{"n": 2}, {"best_of": 2, "stream": False}], ids=str)
async def test_each_answer_that_is_generated_is_a_stream(
    world: World, http: httpx.AsyncClient, extra: dict[str, object]
) -> None:
    await world.limit("acme", concurrent_streams=3)
    world.engine.hold_after = 2
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 4} | extra
    running = asyncio.create_task(http.post("/v1/completions", json=body))
    await eventually(lambda: len(world.engine.active) == 1)
    refused = await http.post("/v1/completions", json=body)
    assert refused.json()["error"]["code"] == "concurrent_streams_exceeded"
    assert "retry-after" in refused.headers
    alone = asyncio.create_task(http.post("/v1/responses", json=RESPONSE))
    await eventually(lambda: len(world.engine.active) == 2)
    world.engine.release()
    assert [answer.status_code for answer in await asyncio.gather(running, alone)] == [200, 200]
    never = await http.post("/v1/completions", json=body | {"n": 4, "best_of": 4, "stream": False})
    assert never.status_code == 429
    assert "never" in never.json()["error"]["message"]
    assert (await http.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("small", "code"),
    [
        ({"requests_per_minute": 20}, "rate_limit_exceeded"),
        ({"tokens_per_minute": 200}, "rate_limit_exceeded"),
        ({"tokens_per_day": 200}, "tokens_per_day_exceeded"),
        ({"concurrent_streams": 20}, "concurrent_streams_exceeded"),
    ],
    ids=str,
)
async def test_prompts_are_admitted_together_before_any_of_them_runs(
    world: World, http: httpx.AsyncClient, small: dict[str, int], code: str
) -> None:
    await world.limit("acme", **small)
    body = {"model": MODEL, "prompt": ["hello"] * 32, "max_tokens": 8}
    refused = await http.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, code)
    assert "never" in refused.json()["error"]["message"]
    assert world.engine.requests == []
    fewer = await http.post("/v1/completions", json=body | {"prompt": ["hello"] * 3})
    assert fewer.status_code == 200
    await world.metered("acme", 3, fewer.json()["usage"]["total_tokens"])
    streams = await world.redis.execute("EXISTS", "pw:{acme}:streams")
    assert streams == 0


class TestPriced:
    @pytest.fixture
    def prices(self) -> PriceList:
        return PriceList(model=Prices(currency="EUR", output=1000))

    async def test_a_budget_is_asked_once_for_all_prompts(
        self, world: World, http: httpx.AsyncClient
    ) -> None:
        await world.limit("acme", hard_budget_micros=100)
        body = {"model": MODEL, "prompt": ["hello"] * 32, "max_tokens": 8}
        refused = await http.post("/v1/completions", json=body)
        assert refused.json()["error"]["code"] == "insufficient_quota"
        assert world.engine.requests == []
        ten = await http.post("/v1/completions", json=body | {"prompt": ["hello"] * 10})
        assert ten.status_code == 200
        await world.metered("acme", 10, ten.json()["usage"]["total_tokens"])
        assert await world.redis.execute("EXISTS", "pw:{acme}:spending") == 0


async def test_requests_without_a_first_token_are_counted_as_queued(
    world: World, http: httpx.AsyncClient
) -> None:
    await world.limit("acme", queued_requests=1)
    world.engine.hold_after = 0
    waiting = asyncio.create_task(http.post("/v1/responses", json=RESPONSE))
    await eventually(lambda: len(world.engine.active) == 1)
    refused = await http.post("/v1/responses", json=RESPONSE)
    assert refused.json()["error"]["code"] == "queue_full"
    assert refused.headers["retry-after"] == "1"
    world.engine.release()
    assert (await waiting).status_code == 200


async def test_a_request_with_its_first_token_is_not_queued_any_more(world: World) -> None:
    await world.limit("acme", queued_requests=1)
    world.engine.hold_after = 1
    open_streams = []
    for running in range(3):
        chunks = aiter(await world.client().chat.completions.create(**CHAT, stream=True))
        open_streams.append(chunks)
        while not (await anext(chunks)).choices[0].delta.content:
            pass
        assert len(world.engine.active) == running + 1


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize(
    ("bounds", "fields", "param", "code"),
    [
        ({"output_tokens": 50}, {"maximum": 51}, "maximum", "invalid_value"),
        ({"context_tokens": 100}, {"maximum": 90}, "maximum", "context_length_exceeded"),
        ({"context_tokens": 10}, {}, "input", "context_length_exceeded"),
    ],
)
async def test_a_request_beyond_its_tenants_lengths_is_refused_by_name(
    world: World,
    http: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    bounds: dict[str, int],
    fields: dict[str, int],
    param: str,
    code: str,
) -> None:
    chat = "messages" in body
    maximum = "max_tokens" if chat else "max_output_tokens"
    names = {"maximum": maximum, "input": "messages" if chat else "input"}
    request = {**body, **{names[name]: value for name, value in fields.items()}}
    assert (await http.post(path, json=request)).status_code == 200
    await world.limit("acme", **bounds)
    refused = await http.post(path, json=request)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (names[param], code)


@pytest.mark.parametrize("limit", ["output_tokens", "context_tokens", "tokens_per_minute"])
async def test_without_a_maximum_an_answer_is_as_long_as_its_tenants_may_be(
    world: World, http: httpx.AsyncClient, limit: str
) -> None:
    await world.limit("acme", **{limit: 60})
    body = {**RESPONSE, "ignore_eos": True}
    answer = (await http.post("/v1/responses", json=body)).json()
    assert answer["status"] == "incomplete"
    used = answer["usage"]
    assert used["output_tokens" if limit == "output_tokens" else "total_tokens"] == 60


async def test_usage_is_what_the_answers_said(world: World, http: httpx.AsyncClient) -> None:
    used = [(await http.post("/v1/responses", json=RESPONSE)).json()["usage"] for _ in range(2)]
    (day,) = await world.metered("acme", 2, sum(one["total_tokens"] for one in used))
    assert day.prompt_tokens == sum(one["input_tokens"] for one in used)
    assert day.output_tokens == sum(one["output_tokens"] for one in used)
    cached = sum(one["input_tokens_details"]["cached_tokens"] for one in used)
    assert day.cached_tokens == cached > 0


async def test_refusals_are_counted_by_limit(world: World, http: httpx.AsyncClient) -> None:
    await world.limit("acme", requests_per_minute=1)
    for _ in range(3):
        await http.post("/v1/responses", json=RESPONSE)
    operator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    text = (await http.get(f"{world.admin_url}/metrics", headers=operator)).text
    assert 'partywall_limited_total{limit="requests"} 2.0' in text


@pytest.mark.parametrize(
    ("path", "body"), [*ROUTES, ("/v1/completions", {"model": MODEL, "prompt": "a"})]
)
async def test_what_fails_as_it_starts_holds_nothing(
    world: World,
    http: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
) -> None:
    await world.limit("acme", concurrent_streams=1)
    service = world.app.state.service
    with monkeypatch.context() as patched:
        patched.setattr(service.connections, "stream", lambda *_: 1 / 0)
        assert (await http.post(path, json=body)).status_code == 500
        assert service.gate.is_empty
    assert (await http.post(path, json=body)).status_code == 200
