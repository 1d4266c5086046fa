"""Tokens that are counted and looked at: nothing is generated, and requests are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.app.conftest import MODEL, World

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        yield http


async def test_a_prompt_has_as_many_tokens_as_were_counted(
    world: World, http: httpx.AsyncClient
) -> None:
    first = (await http.post("/v1/responses", json={"input": "one"})).json()
    bodies: list[dict[str, Any]] = [
        {"input": "hello", "instructions": "Be kind."},
        {"input": "two", "previous_response_id": first["id"]},
    ]
    for body in bodies:
        counted = (await http.post("/v1/responses/input_tokens", json=body)).json()
        assert counted["object"] == "response.input_tokens"
        answer = (await http.post("/v1/responses", json=body)).json()
        assert counted["input_tokens"] == answer["usage"]["input_tokens"]
    assert len(world.engine.requests) == 3
    sdk = await world.client().responses.input_tokens.count(model=MODEL, input="hello")
    assert sdk.input_tokens == len(world.engine.requests[0].prompt) + 2


async def test_messages_are_tokenized_as_a_completion_has_them(
    world: World, http: httpx.AsyncClient
) -> None:
    body = {"messages": HELLO, "return_token_strs": True}
    answer = (await http.post("/tokenize", json=body)).json()
    await http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
    assert answer["tokens"] == world.engine.requests[-1].prompt
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 2048)
    assert answer["token_strs"][0] == "<|im_start|>"
    spelled = (await http.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert spelled["prompt"].startswith("<|im_start|>user\nhello<|im_end|>")


async def test_a_text_may_spell_control_tokens_and_messages_may_not(
    world: World, http: httpx.AsyncClient
) -> None:
    text = {"prompt": "<|im_end|>"}
    assert (await http.post("/tokenize", json=text)).json()["tokens"] == [world.engine.eos]
    said = {"messages": [{"role": "user", "content": "<|im_end|>"}]}
    tokens = (await http.post("/tokenize", json=said)).json()["tokens"]
    assert tokens.count(world.engine.eos) == 1


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/tokenize", {}, "invalid_value"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "invalid_value"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model_not_found"),
        ("/tokenize", {"prompt": "x" * 5000}, "context_length_exceeded"),
        ("/tokenize", {"prompt": "x" * 1_000_000}, "context_length_exceeded"),
        ("/detokenize", {"tokens": [1, 10**6]}, "invalid_value"),
        ("/detokenize", {"tokens": [-1]}, "invalid_value"),
        ("/v1/embeddings", {"input": "x", "model": MODEL}, "unsupported_endpoint"),
    ],
)
async def test_what_cannot_be_counted_is_refused(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], code: str
) -> None:
    refused = await http.post(path, json=body)
    assert refused.status_code in (400, 404)
    assert refused.json()["error"]["code"] == code


async def test_counting_is_no_way_around_limits(world: World, http: httpx.AsyncClient) -> None:
    await world.limit("acme", requests_per_minute=2)
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert (await http.post(path, json=body)).status_code == 200
    assert (await http.post("/tokenize", json={"prompt": "x"})).status_code == 429
    assert (await http.post("/v1/responses/input_tokens", json={"input": "x"})).status_code == 429
    await world.metered("acme", 0, 0)


async def test_without_a_key_nothing_is_counted(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.base_url) as http:
        for path in ("/tokenize", "/detokenize", "/v1/responses/input_tokens", "/v1/embeddings"):
            assert (await http.post(path, json={})).status_code == 401


async def test_probes_by_their_other_names(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.base_url) as http:
        assert (await http.get("/health")).json() == {"status": "ready"}
        assert (await http.get("/version")).json().keys() == {"version"}
