"""Bodies and paths of the Messages API that nobody in good faith sends."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from app.messages.parse import generation_request
from app.wire.messages import CountBody
from tests.app.conftest import MODEL, World
from tests.app.messages.asking import ASKED

MARK = {"type": "ephemeral"}


async def post(world: World, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    headers = {"x-api-key": world.keys["acme"]}
    body = {"model": MODEL, "messages": [ASKED], **fields}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        return await http.post(path, json=body)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_mark_behind_nothing_is_no_fault_of_the_server(world: World, path: str) -> None:
    silent = [{"role": "user", "content": []}]
    fields = {"max_tokens": 5} if path == "/v1/messages" else {}
    refused = await post(world, path, messages=silent, cache_control=MARK, **fields)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("messages: Nothing is said")
    told = await post(world, path, messages=silent, cache_control=MARK, system="Hm.", **fields)
    assert told.status_code == 200


async def test_a_signature_of_nobody_is_named_as_this_api_calls_it(world: World) -> None:
    thought = {"type": "thinking", "thinking": "", "signature": "AAAA"}
    turns = [ASKED, {"role": "assistant", "content": [thought]}, ASKED]
    refused = await post(world, max_tokens=5, messages=turns)
    assert refused.json()["error"]["message"].startswith("signature: This content was not")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("DELETE", "/v1/messages/count_tokens", 405),
        ("GET", "/v1/messages/batches/msgbatch_1", 404),
    ],
)
async def test_what_is_not_there_is_refused_in_the_shape_of_this_api(
    world: World, method: str, path: str, status: int
) -> None:
    async with httpx.AsyncClient(base_url=world.base_url) as http:
        refused = await http.request(method, path)
        other = await http.request(method, f"/v1/other{path}")
    body = refused.json()
    assert (refused.status_code, body["type"]) == (status, "error")
    assert body["request_id"] == refused.headers["request-id"]
    assert other.json()["error"]["code"] == "not_found"


def test_many_turns_of_one_side_take_time_as_they_grow() -> None:
    def seconds(num_turns: int) -> float:
        turn = {"role": "user", "content": "\N{GRINNING FACE}" + "x" * 900}
        body = CountBody.model_validate({"model": MODEL, "messages": [turn] * num_turns})
        began = time.process_time()
        generation_request(body)
        return time.process_time() - began

    few, many = (min(seconds(count) for _ in range(3)) for count in (1_000, 4_000))
    assert many < 8 * few, "four times as many take four times as long; in square time, sixteen"
