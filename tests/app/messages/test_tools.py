"""Tools and structured outputs over the Messages API."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest

from tests.app.chat.test_tools import CALL
from tests.app.conftest import World
from tests.app.messages.asking import create, prompt, stream

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "Of a city.", "input_schema": SCHEMA}
ASKED = {"role": "user", "content": "How is it in Bonn?"}


async def test_a_call_and_its_result_go_on_the_conversation(world: World) -> None:
    world.engine.answer = f"One moment.\n{CALL}"
    message = await create(world, messages=[ASKED], tools=[TOOL])
    said, call = message.content
    assert (message.stop_reason, said.text.strip()) == ("tool_use", "One moment.")
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Bonn"})
    assert call.id.startswith("toolu_")
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [ASKED, {"role": "assistant", "content": message.model_dump()["content"]}]
    world.engine.answer = "It is sunny."
    again = {"role": "user", "content": [result, {"type": "text", "text": "And?"}]}
    message = await create(world, messages=[*turns, again], tools=[TOOL])
    assert (message.stop_reason, message.content[0].text) == ("end_turn", "It is sunny.")
    assert "<tool_response>\nsunny\n</tool_response>" in prompt(world)
    assert prompt(world).endswith("And?<|im_end|>\n<|im_start|>assistant\n")
    failed = {**result, "is_error": True, "content": [{"type": "text", "text": "timeout"}]}
    await create(world, messages=[*turns, {"role": "user", "content": [failed]}], tools=[TOOL])
    assert "<tool_response>\nError: timeout\n</tool_response>" in prompt(world)


async def test_a_stream_tells_the_name_first_and_then_the_input(world: World) -> None:
    world.engine.answer = f"{CALL}\n{CALL}"
    events, message = await stream(world, messages=[ASKED], tools=[TOOL])
    starts = [event.content_block for event in events if event.type == "content_block_start"]
    assert [(one.type, one.name, one.input) for one in starts] == [
        ("tool_use", "get_weather", {})
    ] * 2
    assert len({one.id for one in starts}) == 2
    parts = [event.partial_json for event in events if event.type == "input_json"]
    assert json.loads("".join(parts[: len(parts) // 2])) == {"city": "Bonn"}
    assert [block.input for block in message.content] == [{"city": "Bonn"}] * 2
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("choice", "parallel", "required", "names"),
    [
        ({"type": "auto"}, True, False, ["get_weather", "other"]),
        ({"type": "any", "disable_parallel_tool_use": True}, False, True, ["get_weather", "other"]),
        ({"type": "tool", "name": "other"}, False, True, ["other"]),
        ({"type": "none"}, True, False, []),
    ],
)
async def test_choices_say_what_may_be_called(
    world: World, choice: dict[str, object], parallel: bool, required: bool, names: list[str]
) -> None:
    world.engine.answer = CALL
    await create(world, tools=[TOOL, {**TOOL, "name": "other"}], tool_choice=choice)
    asked = world.engine.requests[-1]
    described = [name for name in ("get_weather", "other") if f'"name": "{name}"' in prompt(world)]
    assert described == (["get_weather", "other"] if names else [])
    grammar = "" if asked.grammar is None else asked.grammar.source
    assert (asked.grammar is not None) == required
    assert [name for name in names if required and name not in grammar] == []
    assert not required or ("get_weather" in grammar) == ("get_weather" in names)
    assert not parallel or not required


async def test_a_long_name_can_be_chosen(world: World) -> None:
    world.engine.answer = CALL
    name = "see_" * 30
    await create(world, tools=[{**TOOL, "name": name}], tool_choice={"type": "tool", "name": name})
    asked = world.engine.requests[-1].grammar
    assert asked is not None
    assert name in asked.source


async def test_a_result_without_its_call_is_refused(world: World) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    with pytest.raises(anthropic.BadRequestError, match="toolu_1"):
        await create(world, messages=[{"role": "user", "content": [result]}], tools=[TOOL])
    turn = {"role": "assistant", "content": [result]}
    with pytest.raises(anthropic.BadRequestError, match="tool_result"):
        await create(world, messages=[ASKED, turn, ASKED], tools=[TOOL])


async def test_an_answer_is_held_to_a_schema(world: World) -> None:
    world.engine.answer = '{"city": "Bonn"}'
    wanted = {"type": "json_schema", "schema": SCHEMA}
    await create(world, output_config={"format": wanted})
    held = world.engine.requests[-1].grammar
    assert held is not None
    assert json.loads(held.source) == SCHEMA
    bad = {"type": "json_schema", "schema": {"type": "string", "pattern": "("}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
        await create(world, output_config={"format": bad})
