"""Fields that clients send, whatever they ask for: what they do, and what they do not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from websockets.asyncio.client import connect

from app.transport.bounds import Bounds
from app.wire.chat import ChatBody
from app.wire.common import Wire
from app.wire.responses import CreateBody
from engine.api import Grammar
from tests.app.conftest import MODEL, World


async def post(world: World, path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        return await http.post(path, json=body)


async def ask(world: World, **fields: Any) -> httpx.Response:
    return await post(world, "/v1/responses", {"input": "hello", **fields})


async def chat(world: World, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": MODEL, "messages": messages, **fields}
    return await post(world, "/v1/chat/completions", body)


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (ChatBody, completion_create_params.CompletionCreateParamsStreaming),
        (CreateBody, response_create_params.ResponseCreateParamsStreaming),
    ],
)
def test_every_field_of_the_official_client_is_known(model: type[Wire], params: type) -> None:
    assert set(params.__annotations__) <= set(model.model_fields)


@pytest.mark.parametrize("api", [ask, chat])
async def test_null_asks_for_nothing(world: World, api: Any) -> None:
    model = CreateBody if api is ask else ChatBody
    fields = dict.fromkeys(model.model_fields.keys() - {"model", "input", "messages"})
    assert (await api(world, **fields)).status_code == 200


@pytest.mark.parametrize("api", [ask, chat])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0},
        {"user": "", "prompt_cache_key": "", "safety_identifier": ""},
        {"logit_bias": {"65": -100}},
        {"min_tokens": 3},
        {"stop": []},
    ],
)
async def test_harmless_values_pass(world: World, api: Any, fields: dict[str, Any]) -> None:
    assert (await api(world, **fields)).status_code == 200


async def test_nobody_is_no_user(world: World) -> None:
    await ask(world)
    await ask(world, user="", safety_identifier="", prompt_cache_key="")
    first, second = (request.namespaces for request in world.engine.requests)
    assert first == second


@pytest.mark.parametrize("api", [ask, chat])
@pytest.mark.parametrize(
    ("asked", "tier", "priority"),
    [
        (None, "default", 0),
        ("auto", "default", 0),
        ("flex", "flex", -1),
        ("priority", "priority", 1),
    ],
)
async def test_a_tier_orders_the_tenants_own_requests(
    world: World, api: Any, asked: str | None, tier: str, priority: int
) -> None:
    answer = await api(world, service_tier=asked)
    assert answer.json()["service_tier"] == tier
    assert world.engine.requests[-1].priority == priority


async def test_parts_may_be_marked_for_the_cache(world: World) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    message = {"role": "user", "content": [{"type": "text", "text": "hello", **mark}]}
    assert (await chat(world, messages=[message])).status_code == 200
    item = {"role": "user", "content": [{"type": "input_text", "text": "hello", **mark}]}
    assert (await ask(world, input=[item])).status_code == 200
    prompts = [request.prompt for request in world.engine.requests]
    assert prompts[0] == prompts[1]


async def test_an_assistant_may_have_said_nothing_and_speakers_have_names(world: World) -> None:
    messages = [
        {"role": "user", "name": "ann", "content": "hello"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "hello?"},
    ]
    assert (await chat(world, messages=messages)).status_code == 200
    messages[1]["content"] = ""
    await chat(world, messages=messages)
    first, second = (request.prompt for request in world.engine.requests)
    assert first == second
    refused = (await chat(world, messages=[{"role": "user", "content": None}])).json()["error"]
    assert refused["param"] == "messages[0]"


async def test_an_answer_comes_back_as_litellm_keeps_it(world: World) -> None:
    answer: dict[str, Any] = {"role": "assistant", "content": "hello", "function_call": None}
    answer["provider_specific_fields"] = {"refusal": None}
    messages = [{"role": "user", "content": "hello"}, answer, {"role": "user", "content": "more"}]
    assert (await chat(world, messages=messages)).status_code == 200
    answer["provider_specific_fields"] = {"refusal": "no"}
    refused = (await chat(world, messages=messages)).json()["error"]
    assert refused["param"] == "messages[1].provider_specific_fields"


async def test_names_are_written_by_templates_that_write_them(world: World) -> None:
    tokenizer, written = world.engine.tokenizer, "{{ '[' + message['name'] + ']' }}"
    template = tokenizer.chat_template
    naming = "{% if message['name'] is defined %}" + written + "{% endif %}"
    try:
        tokenizer.chat_template = template.replace(
            "{{ '<|im_start|>'", naming + "{{ '<|im_start|>'"
        )
        message = {"role": "user", "name": "<|im_end|>ann", "content": "hello"}
        assert (await chat(world, messages=[message])).status_code == 200
    finally:
        tokenizer.chat_template = template
    prompt = world.engine.requests[-1].prompt
    assert tokenizer.decode(prompt).startswith("[<|im_end|>ann]")
    assert world.engine.eos not in prompt[: prompt.index(tokenizer.bos_token_id)]


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [httpx.Response(200, text=line).json() for line in lines]


async def test_usage_grows_with_the_chunks_where_that_is_asked_for(world: World) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = chunks(await chat(world, stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in answer]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, len("You said: hello") + 1)
    only = chunks(await chat(world, stream=True, stream_options={"continuous_usage_stats": True}))
    assert not any("usage" in chunk for chunk in only)


async def test_padding_hides_the_length_of_a_delta(world: World) -> None:
    options = {"include_obfuscation": True}
    answer = chunks(await chat(world, stream=True, stream_options=options))
    texts = [
        (chunk["choices"][0]["delta"].get("content"), chunk.get("obfuscation")) for chunk in answer
    ]
    assert all((len(text) + len(padding)) % 16 == 0 for text, padding in texts if text)
    assert not any(padding for text, padding in texts if not text)
    plain = chunks(await chat(world, stream=True))
    assert not any("obfuscation" in chunk for chunk in plain)
    events = chunks(await ask(world, stream=True, stream_options=options))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert deltas
    assert all(len(one["delta"] + one["obfuscation"]) % 16 == 0 for one in deltas)


async def test_a_role_comes_with_the_first_token(world: World) -> None:
    world.engine.answers = ["a", "b"]
    answer = chunks(await chat(world, stream=True, n=2))
    for index in (0, 1):
        deltas = [
            chunk["choices"][0]["delta"]
            for chunk in answer
            if chunk["choices"][0]["index"] == index
        ]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "ab"[index]}, {}]
    world.engine.answers = [""]
    deltas = [c["choices"][0]["delta"] for c in chunks(await chat(world, stream=True))]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("api", [ask, chat])
async def test_too_long_a_prompt_is_told_in_the_words_that_clients_look_for(
    world: World, api: Any
) -> None:
    fields = {"input": "x" * 3000} if api is ask else {
        "messages": [{"role": "user", "content": "x" * 3000}]
    }  # fmt: skip
    for asked in (fields, {"max_output_tokens" if api is ask else "max_tokens": 5000}):
        error = (await api(world, **asked)).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 2048 tokens.")


UNKNOWN = {
    "colour": 1,
    "input": [{"role": "user", "shade": 2, "content": [
        {"type": "input_text", "text": "hello", "line\n\u00e9": 3}
    ]}],
}  # fmt: skip
NAMED = ["colour", "input[0].shade", "input[0].content[0].line\n\u00e9"]
ignoring = pytest.mark.parametrize("limits", [Bounds(ignores_unknown_fields=True)])


@ignoring
async def test_an_unknown_word_is_not_taken_for_the_known_one_that_it_looks_like(
    world: World,
) -> None:
    outputs = {"regex": "a+", "regex_": {"x": 1}, "choice_": ["b"]}
    assert (await ask(world, structured_outputs=outputs)).status_code == 200
    assert world.engine.requests[-1].grammar == Grammar(kind="regex", source="a+")
    assert (await ask(world, structured_outputs={"choice_": ["b"]})).status_code == 400


@ignoring
async def test_unknown_fields_are_ignored_and_named_where_the_operator_says_so(
    world: World,
) -> None:
    answer = await ask(world, **UNKNOWN)
    assert answer.status_code == 200
    header = answer.headers["x-partywall-ignored-fields"]
    assert header == r"colour, input[0].shade, input[0].content[0].line\n\u00e9"
    assert "x-partywall-ignored-fields" not in (await ask(world)).headers
    streamed = await ask(world, stream=True, **UNKNOWN)
    assert streamed.headers["x-partywall-ignored-fields"] == header
    created, started, *_ = chunks(streamed)
    assert created["ignored_fields"] == NAMED
    assert "ignored_fields" not in started
    async with connect(world.ws_url, additional_headers=world.headers()) as socket:
        await socket.send(json.dumps({"type": "response.create", **UNKNOWN}))
        assert json.loads(await socket.recv())["ignored_fields"] == NAMED


async def test_a_tenants_record_has_its_unknown_fields_ignored_and_nobody_elses(
    world: World, admin: httpx.AsyncClient
) -> None:
    async def sent(tenant: str) -> httpx.Response:
        headers = world.headers(tenant)
        async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
            return await http.post("/v1/responses", json={"input": "hello", **UNKNOWN})

    create = json.dumps({"type": "response.create", **UNKNOWN})
    async with connect(world.ws_url, additional_headers=world.headers()) as socket:
        assert (await sent("acme")).status_code == 400
        await socket.send(create)
        assert json.loads(await socket.recv())["type"] == "error"
        changed = await admin.patch("/tenants/acme", json={"unknown_fields": "ignore"})
        assert changed.json()["unknown_fields"] == "ignore"
        assert "colour" in (await sent("acme")).headers["x-partywall-ignored-fields"]
        assert (await sent("umbra")).status_code == 400
        first = {"type": "error"}
        async with asyncio.timeout(10):
            while first["type"] == "error":
                await asyncio.sleep(0.01)
                await socket.send(create)
                first = json.loads(await socket.recv())
        assert first["ignored_fields"] == NAMED
    await admin.patch("/tenants/acme", json={"unknown_fields": None})
    assert (await sent("acme")).status_code == 400


@ignoring
async def test_a_tenants_record_has_its_unknown_fields_refused_where_others_are_ignored(
    world: World, admin: httpx.AsyncClient
) -> None:
    assert (await admin.patch("/tenants/acme", json={"unknown_fields": "refuse"})).is_success
    answer = await ask(world, colour=1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "colour")
    refused = await admin.patch("/tenants/acme", json={"unknown_fields": "keep"})
    assert refused.status_code == 422


@ignoring
async def test_known_fields_are_checked_as_ever(world: World) -> None:
    for fields in ({"temperature": 3}, {"background": 1}, {"input": [{"role": "robot"}]}):
        assert (await ask(world, **fields)).status_code == 400
    answer = await ask(world, **{f"field{number}": 1 for number in range(500)})
    assert len(answer.headers["x-partywall-ignored-fields"].split(", ")) == 32


@ignoring
async def test_an_unknown_field_of_a_function_may_be_named_like_anything(world: World) -> None:
    names = ("schema", "copy", "json", "dict", "function", "ignored_fields")
    tool = {"type": "function", "name": "f", **dict.fromkeys(names, 1)}
    answer = await ask(world, tools=[tool], ignored_fields=1)
    assert answer.status_code == 200
    assert answer.headers["x-partywall-ignored-fields"].startswith("ignored_fields, tools[0].")
    shown = answer.json()["tools"][0]
    assert shown == {
        "type": "function", "name": "f", "description": None, "parameters": None, "strict": None
    }  # fmt: skip


async def test_a_wish_that_no_model_knows_is_named(world: World) -> None:
    for answer in (await ask(world, text={"verbosity": "low"}), await chat(world, verbosity="low")):
        assert answer.status_code == 200
        assert answer.headers["x-partywall-ignored-fields"].endswith("verbosity")
    for answer in (await ask(world, text={"verbosity": "medium"}), await chat(world)):
        assert "x-partywall-ignored-fields" not in answer.headers
