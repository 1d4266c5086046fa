"""Custom tools over the Responses API: what they are called with is text, in items of their own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import another, http_of
from tests.app.conftest import MODEL, World, eventually
from tests.app.responses.test_responses_ws import socket
from tests.app.responses.test_resume import rest_by_sse
from tests.app.responses.test_tools import either

__all__ = ["either"]

SCRIPT = 'print("Bonn")\nprint(1)'
FREE: dict[str, Any] = {"type": "custom", "name": "run", "description": "Runs a script."}
LARK = 'start: LINE (LF LINE)*\nLINE: /[^\\n]+/\nLF: "\\n"'
HELD = {**FREE, "format": {"type": "grammar", "syntax": "lark", "definition": LARK}}
FUNCTION = {"type": "function", "name": "now", "parameters": None, "strict": False}
CALL = f'<tool_call>\n{{"name": "run", "arguments": {json.dumps({"input": SCRIPT})}}}\n</tool_call>'
RAW = f'<tool_call>\n{{"name": "run"}}\n{SCRIPT}'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
ASKED = {"role": "user", "content": "Say Bonn."}
EITHER = pytest.mark.parametrize(("tool", "answer"), [(FREE, CALL), (HELD, RAW)])


async def respond(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": [ASKED], "tools": [FREE], **fields}
    return await world.client().responses.create(**arguments)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


def result_of(call: Any, output: Any = "done") -> dict[str, Any]:
    return {"type": "custom_tool_call_output", "call_id": call.call_id, "output": output}


@EITHER
async def test_a_call_is_an_item_with_its_text(
    world: World, tool: dict[str, Any], answer: str
) -> None:
    world.engine.answer = f"One moment.\n{answer}"
    response = await respond(world, tools=[tool])
    message, call = response.output
    assert (response.output_text, message.status) == ("One moment.", "completed")
    assert (call.type, call.name, call.input) == ("custom_tool_call", "run", SCRIPT)
    assert (call.status, call.id[:4], call.call_id[:5]) == ("completed", "ctc_", "call_")
    [shown] = response.tools
    assert shown.to_dict() == {"format": {"type": "text"}, **tool}
    assert await world.client().responses.retrieve(response.id) == response


async def test_calls_of_functions_and_of_custom_tools_stand_side_by_side(world: World) -> None:
    world.engine.answer = f"{NOW}\n{CALL}\n{NOW}\n{CALL}"
    response = await respond(world, tools=[FREE, FUNCTION])
    assert [one.type for one in response.output] == ["function_call", "custom_tool_call"] * 2
    assert [getattr(one, "input", "") for one in response.output] == ["", SCRIPT] * 2
    assert len({one.call_id for one in response.output}) == 4


@EITHER
async def test_a_stream_tells_the_text_as_it_comes(
    world: World, tool: dict[str, Any], answer: str
) -> None:
    world.engine.answer = answer
    async with world.client().responses.stream(model=MODEL, input=[ASKED], tools=[tool]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert (events[2].item.name, events[2].item.input) == ("run", "")
    deltas = [event.delta for event in events if event.type.endswith(".delta")]
    assert len(deltas) > 5
    [done] = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == final.output[0].input == SCRIPT
    assert {done.item_id, events[3].item_id} == {final.output[0].id}


@pytest.mark.parametrize("by_id", [True, False])
@EITHER
async def test_a_result_goes_on_behind_its_call(
    world: World, tool: dict[str, Any], answer: str, by_id: bool
) -> None:
    world.engine.answer = answer
    first = await respond(world, tools=[tool])
    results = [result_of(first.output[0], [{"type": "input_text", "text": "done"}])]
    asked = {"previous_response_id": first.id, "input": results}
    if not by_id:
        asked = {"input": [ASKED, *(item.to_dict() for item in first.output), *results]}
    world.engine.answer = "It is said."
    second = await respond(world, **asked, tools=[tool])
    assert second.output_text == "It is said."
    written = answer if by_id else CALL
    assert prompt(world).endswith(
        f"{written}<|im_end|>\n<|im_start|>user\n<tool_response>\ndone\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    listed = await world.client().responses.input_items.list(second.id, order="asc")
    assert listed.data[-1].type == "custom_tool_call_output"
    assert listed.data[-1].id.startswith("ctco_")


async def test_a_text_is_gone_on_from_in_any_template_and_told_anew_under_other_tools(
    either: World,
) -> None:
    world = either
    world.engine.answer = RAW
    first = await respond(world, tools=[HELD])
    asked = {"previous_response_id": first.id, "input": [result_of(first.output[0])]}
    world.engine.answer = "It is said."
    second = await respond(world, **asked, tools=[HELD])
    assert f"{RAW}<|im_end|>" in prompt(world)
    assert second.usage.input_tokens_details.cached_tokens > 100
    await respond(world, **asked, tools=[FREE])
    assert CALL in prompt(world)
    assert json.dumps(LARK)[1:-1] not in prompt(world)


async def test_a_stored_conversation_keeps_calls_and_results(world: World) -> None:
    client = world.client()
    kept = await client.conversations.create()
    world.engine.answer = RAW
    first = await respond(world, tools=[HELD], conversation=kept.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.conversations.items.create(
            kept.id, items=[{**result_of(first.output[0]), "call_id": "call_other"}]
        )
    assert refused.value.param == "items[0].call_id"
    world.engine.answer = "It is said."
    await respond(world, tools=[HELD], conversation=kept.id, input=[result_of(first.output[0])])
    listed = await client.conversations.items.list(kept.id, order="asc")
    assert [item.type for item in listed.data] == [
        "message",
        "custom_tool_call",
        "custom_tool_call_output",
        "message",
    ]
    assert (listed.data[1].input, listed.data[1].id) == (SCRIPT, first.output[0].id)


async def test_a_conversation_on_a_socket_calls_and_goes_on(world: World) -> None:
    world.engine.answer = RAW
    async with socket(world) as ws:
        await ws.create([ASKED], tools=[HELD], store=False)
        events = await ws.turn()
        deltas = [e["delta"] for e in events if e["type"].endswith("tool_call_input.delta")]
        response = events[-1]["response"]
        [call] = response["output"]
        assert "".join(deltas) == call["input"] == SCRIPT
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
        world.engine.answer = "It is said."
        await ws.create([result], tools=[HELD], store=False, previous_response_id=response["id"])
        final = (await ws.turn())[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == "It is said."


async def test_a_chosen_tool_is_all_that_may_be_called(world: World) -> None:
    tools = [HELD, FUNCTION]
    for choice in (
        {"type": "custom", "name": "run"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "run"}]},
    ):
        world.engine.answer = RAW
        response = await respond(world, tools=tools, tool_choice=choice)
        assert response.tool_choice.to_dict() == choice
        assert response.output[0].input == SCRIPT
        grammar = world.engine.requests[-1].grammar
        assert grammar is not None
        assert '{\\"name\\": \\"run\\"}' in grammar.source
        assert '\\"now\\"' not in grammar.source
    assert (await respond(world, tools=tools, tool_choice="none")).output_text == RAW


async def test_a_model_is_told_of_the_text_and_of_its_grammar(world: World) -> None:
    world.engine.answer = "Hm."
    response = await respond(world, tools=[HELD])
    text = prompt(world)
    assert '"properties": {"input": {"type": "string"}}' in text
    assert json.dumps(LARK)[1:-1] in text
    counted = await world.client().responses.input_tokens.count(
        model=MODEL, input=[ASKED], tools=[HELD]
    )
    assert counted.input_tokens == response.usage.input_tokens


@EITHER
async def test_a_call_that_is_cut_off_is_incomplete(
    world: World, tool: dict[str, Any], answer: str
) -> None:
    world.engine.answer = answer
    cut = answer.index("Bonn")
    response = await respond(world, tools=[tool], max_output_tokens=cut)
    assert response.status == "incomplete"
    assert (response.output[0].status, response.output[0].input) == ("incomplete", 'print("')
    response = await respond(world, tools=[tool], extra_body={"stop": ["Bonn"]})
    assert (response.output[0].status, response.output[0].input) == ("incomplete", 'print("')


async def test_wherever_a_restart_interrupts_a_call_the_whole_is_the_same(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.answer = f"Hm. {RAW}"
    body = {"input": [ASKED], "tools": [HELD]}
    interrupted = []
    async with http_of(world) as http:
        for cut in range(3, len(world.engine.answer), 9):
            world.engine.hold_after = cut
            reading = asyncio.create_task(http.post("/v1/responses", json=body | {"stream": True}))
            await eventually(lambda: bool(world.engine.holding))
            interrupted.append(world.engine.requests[-1].request_id)
            await world.app.state.service.responses.suspend()
            await reading
    async with another(world, store_server) as after, http_of(after) as http:
        for response_id in interrupted:
            events = await rest_by_sse(http, response_id)
            told = [e["delta"] for e in events if e["type"].endswith("tool_call_input.delta")]
            assert "".join(told) == events[-1]["response"]["output"][1]["input"] == SCRIPT


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{**FREE, "format": {"type": "regex"}}]}, "tools[0].format", "text and grammar"),
        (
            {"tools": [{**HELD, "format": {**HELD["format"], "definition": "start: nothing"}}]},
            "tools[0].format.definition",
            'unknown name: "nothing"',
        ),
        (
            {
                "tools": [
                    {**HELD, "format": {**HELD["format"], "definition": 'start: "a"\n}\nx: "b"'}}
                ]
            },
            "tools[0].format.definition",
            "cannot be used",
        ),
        (
            {
                "tools": [
                    FUNCTION,
                    {**FREE, "format": {"type": "grammar", "syntax": "regex", "definition": "(a"}},
                ]
            },
            "tools[1].format.definition",
            "unclosed group",
        ),
        ({"tools": [FREE, FREE]}, "tools[1]", "two tools 'run'"),
        ({"tool_choice": {"type": "function", "name": "run"}}, "tool_choice", "no function 'run'"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "custom", "name": "now"}},
            "tool_choice",
            "no custom tool 'now'",
        ),
        ({"tools": [{"type": "local_shell"}]}, "tools[0]", "not 'local_shell'"),
        ({"tools": [{"type": "apply_patch"}]}, "tools[0]", "not 'apply_patch'"),
        ({"tools": [{"type": "mcp"}]}, "tools[0]", "not 'mcp'"),
        ({"tools": [{"type": "file_search"}]}, "tools[0]", "not 'file_search'"),
        ({"tools": [HELD], "extra_body": {"stop_token_ids": [5]}}, "stop_token_ids", "a grammar"),
        ({"tools": [FREE], "extra_body": {"min_tokens": 5}}, "min_tokens", "'tools[0]'"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, **fields)
    assert refused.value.param == param
    assert message in refused.value.message
    assert not world.engine.requests
