"""Functions over chat completions: called by the model, answered by the unmodified client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.app.conftest import MODEL, World

FUNCTION = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
TOOLS = [{"type": "function", "function": FUNCTION}]
ASKED = {"role": "user", "content": "How is it in Bonn?"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


async def complete(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "messages": [ASKED], "tools": TOOLS, **fields}
    return await world.client().chat.completions.create(**arguments)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


async def test_a_call_is_a_tool_call_and_its_result_goes_on_the_conversation(world: World) -> None:
    world.engine.answer = f"One moment.\n{CALL}"
    [choice] = (await complete(world)).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Bonn"},
    )
    assert '"description": "The weather of a city."' in prompt(world)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    world.engine.answer = "It is sunny."
    messages = [ASKED, choice.message.model_dump(exclude_none=True), result]
    [choice] = (await complete(world, messages=messages)).choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "It is sunny.")
    assert choice.message.tool_calls is None
    assert prompt(world).endswith(
        f"<|im_start|>assistant\nOne moment.\n{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_a_stream_tells_the_name_first_and_then_the_arguments(world: World) -> None:
    world.engine.answer = f"{CALL}\n{CALL}"
    chunks = [chunk async for chunk in await complete(world, stream=True)]
    calls = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    for index in (0, 1):
        first, *more = [one for one in calls if one.index == index]
        assert (first.function.name, first.function.arguments) == ("get_weather", "")
        assert first.id.startswith("call_")
        assert all(one.id is None and one.function.name is None for one in more)
        assert len(more) > 5
        text = "".join(one.function.arguments for one in more)
        assert json.loads(text) == {"city": "Bonn"}
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_a_call_that_a_stop_string_cuts_is_none_to_be_made(world: World) -> None:
    world.engine.answer = f"{CALL}\n{CALL}"
    [choice] = (await complete(world, stop=["Bonn"])).choices
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "'
    chunks = [chunk async for chunk in await complete(world, stop=["Bonn"], stream=True)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    [choice] = (await complete(world, stop=["</tool_call>"])).choices
    assert choice.finish_reason == "tool_calls", "its arguments are whole"


async def test_the_stream_helper_assembles_calls(world: World) -> None:
    world.engine.answer = f"{CALL}\n{CALL}"
    completions = world.client().chat.completions
    async with completions.stream(model=MODEL, messages=[ASKED], tools=TOOLS) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert [call.function.parsed_arguments for call in calls] == [{"city": "Bonn"}] * 2
    assert calls[0].id != calls[1].id


class GetWeather(pydantic.BaseModel):
    """The weather of a city."""

    city: str


async def test_the_clients_own_models_are_functions(world: World) -> None:
    world.engine.answer = CALL.replace("get_weather", "GetWeather")
    client = world.client()
    completion = await client.chat.completions.parse(
        model=MODEL, messages=[ASKED], tools=[openai.pydantic_function_tool(GetWeather)]
    )
    [call] = completion.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Bonn")
    response = await client.responses.parse(
        model=MODEL,
        input=[ASKED],
        tools=[openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}],
    )
    assert json.loads(response.output[0].arguments) == {"city": "Bonn"}


async def test_beams_call_functions_too(world: World) -> None:
    world.engine.answers = [CALL, "no"]
    extra = {"num_beams": 2}
    free = [{"type": "function", "function": {**FUNCTION, "strict": False}}]
    choices = (await complete(world, n=2, extra_body=extra, tools=free)).choices
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop"]


async def test_every_answer_of_several_has_its_own_calls(world: World) -> None:
    world.engine.answers = [CALL, "none", f"x {CALL}"]
    choices = (await complete(world, n=3)).choices
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [choice.message.content for choice in choices] == [None, "none", "x"]
    ids = {call.id for choice in choices for call in choice.message.tool_calls or ()}
    assert len(ids) == 2


async def test_with_choice_none_nothing_is_told_or_called(world: World) -> None:
    world.engine.answer = CALL
    [choice] = (await complete(world, tool_choice="none")).choices
    assert (choice.message.content, choice.message.tool_calls) == (CALL, None)
    assert "get_weather" not in prompt(world)


async def test_only_allowed_functions_are_called(world: World) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    world.engine.answer = CALL
    completion = await complete(world, tools=[*TOOLS, other], tool_choice=choice)
    assert completion.choices[0].message.content == CALL
    assert "get_weather" in prompt(world)


async def test_an_answer_ends_behind_its_first_call_unless_they_may_be_parallel(
    world: World,
) -> None:
    world.engine.answer = f"{CALL}\n{CALL}\n{'and so on ' * 20}"
    completion = await complete(world, parallel_tool_calls=False)
    assert len(completion.choices[0].message.tool_calls) == 1
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage.completion_tokens < len(f"{CALL}\n{CALL}")


async def test_a_call_that_is_cut_off_is_told_as_far_as_it_came(world: World) -> None:
    world.engine.answer = CALL
    [choice] = (await complete(world, max_tokens=len(CALL) - 20)).choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "'


async def test_logprobs_are_those_of_what_is_said(world: World) -> None:
    world.engine.answer = f"Now: {CALL}"
    [choice] = (await complete(world, logprobs=True)).choices
    assert "".join(one.token for one in choice.logprobs.content) == "Now:"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": TOOLS * 2}, "tools[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages"),
        ({"messages": [{**ASKED, "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields)
    assert refused.value.param == param
    assert not world.engine.requests


async def test_a_schema_that_is_nested_too_deeply_is_refused(world: World) -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"properties": schema}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, tools=tools)
    assert refused.value.param == "tools[0].function.parameters"
