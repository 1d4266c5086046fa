"""Functions over the Responses API: calls are items, and their results go the conversation on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from app.transport.bounds import Bounds
from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import another, http_of
from tests.app.conftest import MODEL, World, byte_tokenizer, eventually, living
from tests.app.prompt.test_tool_style import CALLS, END, START
from tests.app.responses.test_responses_ws import socket
from tests.app.responses.test_resume import rest_by_sse
from tests.app.scripted_engine import ScriptedEngine

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
ASKED = {"role": "user", "content": "How is it in Bonn?"}


@pytest.fixture(params=["told in text", "native"])
async def either(
    request: pytest.FixtureRequest, store_server: EmbeddedStore
) -> AsyncIterator[World]:
    """A world whose template knows no functions, and one whose does."""
    tokenizer = byte_tokenizer()
    if request.param == "native":
        tokenizer.chat_template = START + CALLS["hermes"].replace("KEY", "arguments") + END
    async with living(ScriptedEngine(tokenizer), Bounds(), store_server.url) as world:
        yield world


async def respond(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": [ASKED], "tools": [TOOL], **fields}
    return await world.client().responses.create(**arguments)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


def result_of(call: Any, output: Any = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


async def test_text_and_calls_are_items_of_their_own(world: World) -> None:
    world.engine.answer = f"One moment.\n{CALL}\n{CALL}"
    response = await respond(world)
    message, first, second = response.output
    assert (response.output_text, message.status) == ("One moment.", "completed")
    assert (first.type, first.name, first.status) == ("function_call", "get_weather", "completed")
    assert json.loads(first.arguments) == {"city": "Bonn"}
    assert first.call_id != second.call_id
    assert first.id != second.id
    assert response.tools[0].name == "get_weather"
    assert await world.client().responses.retrieve(response.id) == response


async def test_a_stream_tells_each_item_from_its_beginning_to_its_end(world: World) -> None:
    world.engine.answer = f"One moment.\n{CALL}"
    async with world.client().responses.stream(model=MODEL, input=[ASKED], tools=[TOOL]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = list(
        dict.fromkeys((event.type, getattr(event, "output_index", -1)) for event in events)
    )
    assert kinds == [
        ("response.created", -1),
        ("response.in_progress", -1),
        ("response.output_item.added", 0),
        ("response.content_part.added", 0),
        ("response.output_text.delta", 0),
        ("response.output_text.done", 0),
        ("response.content_part.done", 0),
        ("response.output_item.done", 0),
        ("response.output_item.added", 1),
        ("response.function_call_arguments.delta", 1),
        ("response.function_call_arguments.done", 1),
        ("response.output_item.done", 1),
        ("response.completed", -1),
    ]
    added = next(event for event in events if getattr(event, "output_index", 0) == 1)
    assert (added.item.name, added.item.arguments) == ("get_weather", "")
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == final.output[1].arguments == '{"city": "Bonn"}'


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_result_goes_on_behind_its_call(either: World, by_id: bool) -> None:
    world, own = either, "tools" not in str(either.engine.tokenizer.chat_template)
    world.engine.answer = f"{CALL}\n{CALL}"
    first = await respond(world)
    results = [
        result_of(first.output[0]),
        result_of(first.output[1], [{"type": "input_text", "text": "wet"}]),
    ]
    asked = {"previous_response_id": first.id, "input": results}
    if not by_id:
        asked = {"input": [ASKED, *(item.to_dict() for item in first.output), *results]}
    world.engine.answer = "It is sunny."
    second = await respond(world, **asked)
    assert second.output_text == "It is sunny."
    text = prompt(world)
    if own:
        assert text.endswith(
            f"{CALL}<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
            "<tool_response>\nwet\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
    else:
        assert text.endswith(
            "</tool_call><|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>tool\nwet"
            "<|im_end|>\n<|im_start|>assistant\n"
        )
    if by_id:
        assert second.usage.input_tokens_details.cached_tokens > 100


async def test_calls_and_results_are_found_by_their_ids(world: World) -> None:
    world.engine.answer = CALL
    first = await respond(world)
    named = {"type": "item_reference", "id": first.output[0].id}
    second = await respond(world, input=[ASKED, named, result_of(first.output[0])])
    assert prompt(world).count(CALL) == 1
    listed = await world.client().responses.input_items.list(second.id, order="asc")
    kinds = [item.type for item in listed.data]
    assert kinds == ["message", "item_reference", "function_call_output"]


async def test_a_conversation_on_a_socket_calls_and_goes_on(world: World) -> None:
    world.engine.answer = CALL
    async with socket(world) as ws:
        await ws.create([ASKED], tools=[TOOL], store=False)
        response = (await ws.turn())[-1]["response"]
        [call] = response["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        world.engine.answer = "It is sunny."
        await ws.create([result], tools=[TOOL], store=False, previous_response_id=response["id"])
        final = (await ws.turn())[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == "It is sunny."


async def test_a_call_is_answered_under_other_tools_and_under_none(world: World) -> None:
    world.engine.answer = CALL
    first = await respond(world)
    again = {"previous_response_id": first.id, "input": [result_of(first.output[0])]}
    await respond(world, **again, tools=[{**TOOL, "name": "other"}])
    asked = str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))
    assert '"name": "other"' in asked
    assert asked.index("<tool_call>") < asked.index("<tool_response>")
    world.engine.answer = CALL
    last = await respond(world, **again, tools=[])
    assert last.output_text == CALL


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call_output", "call_id": "call_x", "output": "?"}, "input"),
        (
            {"type": "function_call", "call_id": "c", "name": "a b", "arguments": ""},
            "input[0].name",
        ),
        ({"type": "function_call_output", "output": "?"}, "input[0].call_id"),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]},
            "input[0].output[0]",
        ),
    ],
)
async def test_items_that_cannot_be_are_refused_by_name(
    world: World, item: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[item])
    assert refused.value.param == param
    assert not world.engine.requests


async def test_arguments_that_are_no_json_go_back_into_the_conversation(world: World) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": '}
    result = {"type": "function_call_output", "call_id": "c", "output": "what?"}
    assert (await respond(world, input=[ASKED, call, result])).status == "completed"


async def test_a_call_that_is_cut_off_is_incomplete(world: World) -> None:
    world.engine.answer = CALL
    response = await respond(world, max_output_tokens=len(CALL) - 20)
    assert response.status == "incomplete"
    assert (response.output[0].status, response.output[0].arguments) == ("incomplete", '{"city": "')


async def test_a_call_that_a_stop_string_cuts_is_incomplete(world: World) -> None:
    world.engine.answer = f"{CALL}\n{CALL.replace('Bonn', 'Rome')}"
    response = await respond(world, extra_body={"stop": ["Rome"]})
    assert response.status == "completed"
    assert [one.status for one in response.output] == ["completed", "incomplete"]


async def test_wherever_a_restart_interrupts_a_call_the_whole_is_the_same(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.answer = f"Hm. {CALL}\n{CALL}"
    body = {"input": [ASKED], "tools": [TOOL]}
    interrupted = []
    async with http_of(world) as http:
        whole = (await http.post("/v1/responses", json=body)).json()
        for cut in range(3, len(world.engine.answer), 11):
            world.engine.hold_after = cut
            reading = asyncio.create_task(http.post("/v1/responses", json=body | {"stream": True}))
            await eventually(lambda: bool(world.engine.holding))
            interrupted.append(world.engine.requests[-1].request_id)
            await world.app.state.service.responses.suspend()
            await reading
    async with another(world, store_server) as after, http_of(after) as http:
        for response_id in interrupted:
            events = await rest_by_sse(http, response_id)
            assert _shown(events[-1]["response"]["output"]) == _shown(whole["output"])
            assert _shown(_from_deltas(events)) == _shown(whole["output"])
            done = [event["type"] for event in events].count("response.output_item.done")
            assert done == len(whole["output"])


def _shown(items: list[dict[str, Any]]) -> list[Any]:
    return [item.get("arguments") or item["content"][0]["text"] for item in items]


def _from_deltas(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            texts[index] = texts.get(index, "") + event["delta"]
    return [{"arguments": texts[index]} for index in sorted(texts)]


async def test_descriptions_longer_than_the_context_are_refused(world: World) -> None:
    body = {"input": [ASKED], "tools": [{**TOOL, "description": "x" * 3000}]}
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        answer = await http.post("/v1/responses", json=body)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
