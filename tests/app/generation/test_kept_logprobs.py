"""Log-probabilities that answers keep until their ends are bounded: for one answer and a tenant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.generation import engine_request
from app.transport.bounds import Bounds
from tests.app.conftest import MODEL, World, eventually

LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
SHARE = 60_000
BOUNDS = pytest.mark.parametrize("limits", [Bounds(max_logprob_bytes=4 * SHARE)])
FEW, MANY = "a few", "many more" * 20
"""What is answered takes a part of a tenant's share, and more than all of it."""


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.base_url, trust_env=False, timeout=20) as client:
        yield client


async def respond(
    http: httpx.AsyncClient, world: World, text: str, tenant: str = "acme", **fields: Any
) -> dict[str, Any]:
    """The response as it ends."""
    body = {"input": text, **LOGPROBS, **fields}
    answer = await http.post("/v1/responses", json=body, headers=world.headers(tenant))
    ended: dict[str, Any] = answer.json()
    return ended


async def complete(http: httpx.AsyncClient, world: World, text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "logprobs": True, "top_logprobs": 20, **fields}
    return await http.post("/v1/chat/completions", json=body, headers=world.headers())


@BOUNDS
async def test_an_answer_fails_whose_log_probabilities_find_no_room_and_no_other(
    world: World, http: httpx.AsyncClient
) -> None:
    refused = await respond(http, world, MANY)
    assert refused["error"]["code"] == "too_many_logprobs"
    assert len(json.dumps(refused).encode()) < 3 * SHARE
    await eventually(lambda: not world.engine.active)
    # What it held is given back, and an answer without them needs none.
    assert (await respond(http, world, FEW))["status"] == "completed"
    plain = await respond(http, world, MANY, include=None, top_logprobs=None)
    assert plain["status"] == "completed"


@BOUNDS
async def test_answers_of_one_tenant_share_its_room_and_leave_another_s_alone(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.hold_after = 8
    held = [asyncio.create_task(respond(http, world, FEW)) for _ in range(5)]
    await eventually(lambda: len(world.engine.holding) == 5)
    other = asyncio.create_task(respond(http, world, FEW, "umbra"))
    await eventually(lambda: len(world.engine.holding) == 6)
    world.engine.release()
    codes = [(one["error"] or {}).get("code") for one in await asyncio.gather(*held)]
    assert codes.count("too_many_logprobs") >= 1
    assert (await other)["status"] == "completed"


@BOUNDS
async def test_a_completion_keeps_what_it_does_not_stream(
    world: World, http: httpx.AsyncClient
) -> None:
    refused = await complete(http, world, MANY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_logprobs"
    streamed = await complete(http, world, MANY, stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert "too_many_logprobs" not in streamed.text


async def test_an_answer_is_no_longer_than_its_log_probabilities_may_be(
    world: World, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_request, "MAX_LOGPROBS", 210)
    refused = await respond(http, world, FEW, max_output_tokens=11)
    assert (refused["error"]["param"], refused["error"]["code"]) == (
        "max_output_tokens",
        "invalid_value",
    )
    for fields, most in (({"max_output_tokens": 10}, 10), ({}, 10), ({"top_logprobs": 0}, 210)):
        await respond(http, world, FEW, **fields)
        assert world.engine.requests[-1].sampling.max_tokens == most
    assert (await complete(http, world, FEW, n=2, max_tokens=6)).status_code == 400
    assert (await complete(http, world, FEW, n=2, max_tokens=5)).status_code == 200
    await respond(http, world, FEW, include=None, top_logprobs=None)
    assert world.engine.requests[-1].sampling.max_tokens > 210


async def score(http: httpx.AsyncClient, world: World, prompts: list[str]) -> httpx.Response:
    fields = {"echo": True, "logprobs": 20, "max_tokens": 0}
    body = {"model": MODEL, "prompt": prompts, **fields}
    return await http.post("/v1/completions", json=body, headers=world.headers())


@BOUNDS
async def test_scores_of_a_prompt_find_no_room_before_all_are_known(
    world: World, http: httpx.AsyncClient
) -> None:
    refused = await score(http, world, ["x" * 400])
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_logprobs")
    await eventually(lambda: not world.engine.active)
    assert (await score(http, world, [FEW])).status_code == 200


@BOUNDS
async def test_scores_of_prompts_that_have_ended_are_kept_until_all_are_told(
    world: World, http: httpx.AsyncClient
) -> None:
    text = "x" * 10
    assert (await score(http, world, [text])).status_code == 200
    # More than run at once: most have ended when the last of them begin.
    refused = await score(http, world, [text] * 60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_logprobs")
    assert (await score(http, world, [text])).status_code == 200, "it was given back"
