"""`/v1/responses` over HTTP: bodies, errors, limits, readers that leave."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket as sockets
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.transport.bounds import Bounds
from tests.app.conftest import MODEL, World, eventually


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
        yield client


async def create(http: httpx.AsyncClient, input: Any = "hello", **fields: Any) -> httpx.Response:
    return await http.post("/v1/responses", json={"input": input, **fields})


REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key",
}  # fmt: skip


async def test_the_response_object_has_every_field_of_the_strict_schema(
    http: httpx.AsyncClient,
) -> None:
    body = (await create(http, temperature=0.5)).json()
    assert body.keys() >= REQUIRED
    numbers = ("top_p", "temperature", "presence_penalty", "frequency_penalty")
    assert [body[name] for name in numbers] == [1.0, 0.5, 0.0, 0.0]
    assert isinstance(body["completed_at"], int)
    part = body["output"][0]["content"][0]
    assert (part["annotations"], part["logprobs"]) == ([], [])
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"colour": 1}, "unknown_parameter", "colour"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_k": 2**63}, "invalid_value", "top_k"),
        ({"temperature": "1"}, "invalid_type", "temperature"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"min_tokens": 9, "max_output_tokens": 8}, "invalid_value", "min_tokens"),
        ({"service_tier": "scale"}, "invalid_value", "service_tier"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 4096}, "context_length_exceeded", "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0]"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        ({"reasoning": {"effort": "some"}}, "invalid_value", "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "unsupported_value", "text.format"),
        ({"truncation": "middle"}, "invalid_value", "truncation"),
        ({"include": ["web_search_call.results"]}, "unsupported_value", "include[0]"),
        ({"include": ["what"]}, "invalid_value", "include[0]"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"stop": [""]}, "invalid_value", "stop"),
        ({"stop": ["a", 1]}, "invalid_type", "stop[1]"),
        ({"stop": list("abcde")}, "invalid_value", "stop"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias.x"),
        ({"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias.99999"),
        (
            {"logit_bias": {"9" * 5000: 1}},
            "invalid_value",
            f"logit_bias.{'9' * 789} [...] {'9' * 200}",
        ),
        ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids[0]"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"previous_response_id": "resp_x"}, "previous_response_not_found", "previous_response_id"),
        ({"prompt": {"id": "nope"}}, "prompt_not_found", "prompt.id"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_not_found", "input[0].id"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "unsupported_value", "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "unsupported_value",
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "b": 1}]}]},
            "unknown_parameter",
            "input[0].content[0].b",
        ),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    http: httpx.AsyncClient, world: World, fields: dict[str, Any], code: str, param: str
) -> None:
    answer = await http.post("/v1/responses", json={"input": "x", **fields})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert not world.engine.requests


async def test_values_that_ask_for_nothing_are_accepted(http: httpx.AsyncClient) -> None:
    neutral = {
        "tools": [], "tool_choice": "auto", "truncation": "disabled", "service_tier": "auto",
        "text": {"format": {"type": "text"}}, "background": False, "reasoning": None,
        "conversation": None, "parallel_tool_calls": True, "model": "Scripted-1", "stream": False,
    }  # fmt: skip
    assert (await create(http, **neutral)).status_code == 200


async def test_history_items_are_accepted_as_they_were_sent(
    http: httpx.AsyncClient, world: World
) -> None:
    output = (await create(http)).json()["output"]
    items = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        *output,
        {"role": "assistant", "phase": "commentary", "content": "hm"},
        {"role": "user", "content": [{"type": "input_text", "text": "bye"}]},
    ]
    assert (await create(http, items)).status_code == 200
    text = world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>assistant\nYou said: hello<|im_end|>\n"
        "<|im_start|>assistant\nhm<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_sampling_fields_reach_the_engine(http: httpx.AsyncClient, world: World) -> None:
    fields = {
        "temperature": 0.3, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.2,
        "frequency_penalty": -0.2, "repetition_penalty": 1.1, "logit_bias": {"7": -3},
        "seed": 11, "stop_token_ids": [65], "max_output_tokens": 9,
    }  # fmt: skip
    await create(http, **fields)
    sampling = world.engine.requests[-1].sampling
    assert sampling.logit_bias == {7: -3.0}
    assert sampling.stop_token_ids == (world.engine.eos, 65)
    assert (sampling.seed, sampling.max_tokens) == (11, 9)
    for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty"):
        assert getattr(sampling, name) == fields[name]
    assert (sampling.frequency_penalty, sampling.repetition_penalty) == (-0.2, 1.1)


async def test_every_request_without_a_seed_draws_its_own(
    http: httpx.AsyncClient, world: World
) -> None:
    await create(http)
    await create(http)
    first, second = (request.sampling.seed for request in world.engine.requests)
    assert first != second


async def test_an_answer_cut_by_its_maximum_is_incomplete(http: httpx.AsyncClient) -> None:
    body = (await create(http, max_output_tokens=3)).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    assert body["completed_at"] is None


async def test_ignore_eos_runs_to_the_maximum(http: httpx.AsyncClient) -> None:
    body = (await create(http, ignore_eos=True, max_output_tokens=40)).json()
    assert body["usage"]["output_tokens"] == 40


async def test_a_stop_string_ends_the_answer_and_the_request(
    http: httpx.AsyncClient, world: World
) -> None:
    body = (await create(http, stop="said")).json()
    assert body["status"] == "completed"
    assert body["output"][0]["content"][0]["text"] == "You "
    assert body["usage"]["output_tokens"] == len("You said")
    assert not world.engine.active


async def test_logprobs_come_with_text_bytes_and_alternatives(http: httpx.AsyncClient) -> None:
    include = ["message.output_text.logprobs"]
    body = (await create(http, "é", include=include, top_logprobs=2)).json()
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in logprobs).decode() == "You said: é"
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)
    assert logprobs[0]["token"] == "Y"


async def test_a_prompt_longer_than_the_context_is_refused(http: httpx.AsyncClient) -> None:
    error = (await create(http, "x" * 3000)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")


async def test_a_client_that_leaves_its_whole_answer_frees_its_request_at_once(
    world: World,
) -> None:
    world.engine.hold_after = 3
    _, writer = await asyncio.open_connection(*_address(world))
    writer.write(_request(world, {"input": "x"}))
    await eventually(lambda: len(world.engine.active) == 1)
    writer.transport.abort()
    await eventually(lambda: not world.engine.active)


@pytest.mark.parametrize("limits", [Bounds(resume_grace_seconds=0.2)])
async def test_an_abandoned_stream_is_cancelled_after_the_grace(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.hold_after = 3
    reader, writer = await asyncio.open_connection(*_address(world))
    writer.write(_request(world, {"input": "x", "stream": True}))
    await reader.readuntil(b"output_text.delta")
    await asyncio.sleep(0.5)
    assert world.engine.active, "as long as somebody reads, it goes on"
    writer.transport.abort()
    await eventually(lambda: not world.engine.active)
    response_id = world.engine.requests[-1].request_id
    responses = world.app.state.service.responses
    await eventually(lambda: responses.running(world.tenants["acme"], response_id) is None)
    stored = (await http.get(f"/v1/responses/{response_id}")).json()
    assert stored["status"] == "cancelled"


@pytest.mark.parametrize("limits", [Bounds(send_deadline_seconds=0.3)])
async def test_a_reader_that_stalls_loses_its_connection_and_the_stream_goes_on(
    world: World, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.answer = "x" * 1900
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, _address(world))
    include = ["message.output_text.logprobs"]
    body = {"input": "x", "stream": True, "include": include, "top_logprobs": 20}
    await loop.sock_sendall(raw, _request(world, body))
    await eventually(lambda: "stalled" in caplog.text)
    await eventually(lambda: not world.engine.active)
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    response_id = world.engine.requests[-1].request_id
    stored = (await http.get(f"/v1/responses/{response_id}")).json()
    assert stored["status"] == "completed"


async def test_cancelling_over_http_ends_the_stream(http: httpx.AsyncClient, world: World) -> None:
    world.engine.hold_after = 3
    async with http.stream("POST", "/v1/responses", json={"input": "x", "stream": True}) as stream:
        lines = stream.aiter_lines()
        created = await _next_event(lines)
        response_id = created["response"]["id"]
        running = (await http.get(f"/v1/responses/{response_id}")).json()
        assert running["status"] == "in_progress"
        cancel = asyncio.create_task(http.post(f"/v1/responses/{response_id}/cancel"))
        event = created
        while event["type"] != "response.incomplete":
            event = await _next_event(lines)
    assert event["response"]["status"] == "cancelled"
    assert (await cancel).json()["status"] == "cancelled"
    again = await http.post(f"/v1/responses/{response_id}/cancel")
    assert again.json() == event["response"]


async def test_what_has_ended_cannot_be_cancelled(http: httpx.AsyncClient) -> None:
    body = (await create(http)).json()
    refused = await http.post(f"/v1/responses/{body['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_id")
    assert (await http.get(f"/v1/responses/{body['id']}")).json() == body


async def test_a_failed_response_is_retrievable_but_cannot_be_continued(
    http: httpx.AsyncClient, world: World
) -> None:
    world.engine.die_after = 3
    assert (await create(http)).status_code == 500
    failed = (await http.get(f"/v1/responses/{world.engine.requests[-1].request_id}")).json()
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    again = await create(http, previous_response_id=failed["id"])
    assert again.json()["error"]["code"] == "previous_response_not_found"


async def test_a_stream_ends_with_the_done_marker(http: httpx.AsyncClient) -> None:
    answer = await create(http, stream=True)
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_unknown_responses_are_404(http: httpx.AsyncClient) -> None:
    for answer in (
        await http.get("/v1/responses/resp_x"),
        await http.post("/v1/responses/resp_x/cancel"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "response_not_found"


async def test_an_unstored_response_is_not_retrievable(http: httpx.AsyncClient) -> None:
    body = (await create(http, store=False)).json()
    assert (await http.get(f"/v1/responses/{body['id']}")).status_code == 404


@pytest.mark.parametrize("limits", [Bounds(max_body_bytes=200)])
async def test_http_errors_all_have_the_shape_and_a_request_id(
    http: httpx.AsyncClient, world: World
) -> None:
    answers = {
        400: await http.post("/v1/responses", content=b"{"),
        401: await http.post("/v1/responses", json={}, headers={"authorization": "Bearer x"}),
        404: await http.get("/v1/nothing"),
        405: await http.get("/v1/responses"),
        413: await create(http, "x" * 300),
        415: await http.post("/v1/responses", content=b"x", headers={"content-type": "text/xml"}),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"].startswith("req_")
    assert answers[401].headers["www-authenticate"].startswith("Bearer")
    assert answers[405].headers["allow"] == "POST"
    other = await http.put("/v1/chat/completions")
    assert set(other.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_a_body_that_is_encoded_is_refused_by_the_name_of_its_coding(
    http: httpx.AsyncClient, world: World
) -> None:
    body = gzip.compress(b'{"input":"x"}')
    for coding in ("gzip", "identity, GZIP", "br"):
        refused = await http.post(
            "/v1/responses",
            content=body,
            headers={"content-type": "application/json", "content-encoding": coding},
        )
        assert refused.status_code == 415
        assert refused.headers["accept-encoding"] == "identity"
        assert coding.rpartition(" ")[2] in refused.json()["error"]["message"]
    plain = await http.post(
        "/v1/responses", content=b'{"input":"x"}', headers={"content-encoding": "identity"}
    )
    assert plain.status_code == 200


async def test_what_a_client_has_sent_is_not_told_at_length(http: httpx.AsyncClient) -> None:
    refused = await create(http, model="m" * 3_000_000)
    assert refused.status_code == 404
    assert len(refused.content) < 2000
    assert MODEL in refused.json()["error"]["message"]


async def test_a_store_outage_keeps_conversations_in_memory(
    http: httpx.AsyncClient, world: World
) -> None:
    await http.get("/v1/models")  # from here on the tenant is known
    with world.outage():
        first = (await create(http, "one")).json()
        second = await create(http, "two", previous_response_id=first["id"])
        assert second.status_code == 200
        unknown = await create(http, "three", previous_response_id="resp_elsewhere")
    assert unknown.status_code == 503
    assert unknown.json()["error"]["code"] == "store_unavailable"


def _address(world: World) -> tuple[str, int]:
    url = httpx.URL(world.base_url)
    assert url.port is not None
    return url.host, url.port


def _request(world: World, body: dict[str, Any]) -> bytes:
    data = json.dumps({"model": MODEL, **body}).encode()
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: {world.headers()['authorization']}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def _next_event(lines: AsyncIterator[str]) -> dict[str, Any]:
    async for line in lines:
        if line.startswith("data: "):
            return json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended")
