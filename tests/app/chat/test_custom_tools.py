"""Custom tools over chat completions: called with text, answered by the unmodified client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.app.conftest import MODEL, World

SCRIPT = 'print("Bonn")\nprint(1)'
FREE: dict[str, Any] = {"type": "custom", "custom": {"name": "run", "description": "Runs."}}
REGEX = {"syntax": "regex", "definition": r"(print\([^)]+\)\n?)+"}
HELD = {
    "type": "custom",
    "custom": {"name": "run", "format": {"type": "grammar", "grammar": REGEX}},
}
FUNCTION = {"type": "function", "function": {"name": "now"}}
CALL = f'<tool_call>\n{{"name": "run", "arguments": {json.dumps({"input": SCRIPT})}}}\n</tool_call>'
RAW = f'<tool_call>\n{{"name": "run"}}\n{SCRIPT}'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
ASKED = {"role": "user", "content": "Say Bonn."}
EITHER = pytest.mark.parametrize(("tool", "answer"), [(FREE, CALL), (HELD, RAW)])


async def complete(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "messages": [ASKED], "tools": [FREE], **fields}
    return await world.client().chat.completions.create(**arguments)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


@EITHER
async def test_a_call_has_its_text_and_its_result_goes_on_the_conversation(
    world: World, tool: dict[str, Any], answer: str
) -> None:
    world.engine.answer = f"One moment.\n{answer}"
    [choice] = (await complete(world, tools=[tool])).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    [call] = choice.message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "run", SCRIPT)
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    messages = [ASKED, choice.message.model_dump(exclude_none=True), result]
    world.engine.answer = "It is said."
    [choice] = (await complete(world, messages=messages, tools=[tool])).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "It is said.")
    assert prompt(world).endswith(
        f"<|im_start|>assistant\nOne moment.\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ndone\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_a_stream_tells_the_name_first_and_then_the_text(world: World) -> None:
    world.engine.answer = f"{CALL}\n{NOW}\n{CALL}"
    stream = await complete(world, tools=[FREE, FUNCTION], stream=True)
    chunks = [chunk.to_dict() async for chunk in stream]
    calls = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", ())]
    for index in (0, 2):
        first, *more = [one for one in calls if one["index"] == index]
        assert (first["type"], first["custom"]) == ("custom", {"name": "run", "input": ""})
        assert all(one.keys() == {"index", "custom"} for one in more)
        assert len(more) > 5
        assert "".join(one["custom"]["input"] for one in more) == SCRIPT
    [named, *_] = [one for one in calls if one["index"] == 1]
    assert (named["type"], named["function"]["name"]) == ("function", "now")
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_stored_completion_shows_its_calls(world: World) -> None:
    world.engine.answer = RAW
    completion = await complete(world, tools=[HELD], store=True)
    kept = await world.client().chat.completions.retrieve(completion.id)
    assert kept.choices[0].message.tool_calls[0].custom.input == SCRIPT


async def test_a_call_that_a_stop_string_cuts_is_none_to_be_made(world: World) -> None:
    for tool, answer in ((FREE, CALL), (HELD, RAW)):
        world.engine.answer = answer
        [choice] = (await complete(world, tools=[tool], stop=["Bonn"])).choices
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls[0].custom.input == 'print("'
    world.engine.answer = CALL
    [choice] = (await complete(world, stop=["</tool_call>"])).choices
    assert choice.finish_reason == "tool_calls", "its text is whole"


async def test_a_chosen_tool_is_all_that_may_be_called(world: World) -> None:
    named = {"type": "custom", "custom": {"name": "run"}}
    allowed = {"mode": "auto", "tools": [named]}
    for choice in (named, {"type": "allowed_tools", "allowed_tools": allowed}):
        world.engine.answer = NOW
        completion = await complete(world, tools=[FREE, FUNCTION], tool_choice=choice)
        assert completion.choices[0].message.tool_calls is None
        grammar = world.engine.requests[-1].grammar
        assert grammar is not None
        assert '\\"run\\"' in grammar.source
        assert '\\"now\\"' not in grammar.source


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "x"}}}]},
            "tools[0].custom.format",
        ),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "a",
                            "format": {
                                "type": "grammar",
                                "grammar": {"syntax": "lark", "definition": "x"},
                            },
                        },
                    }
                ]
            },
            "tools[0].custom.format.grammar.definition",
        ),
        ({"extra_body": {"num_beams": 2}}, "tools[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "mcp"}]}]},
            "messages[0].tool_calls[0]",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields)
    assert refused.value.param == param
    assert not world.engine.requests
