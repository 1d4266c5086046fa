"""What a model reasons in chat completions: `reasoning_content`, there and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import BadRequestError

from tenants.storage.embedded import EmbeddedStore
from tests.app.chat.test_tools import CALL, TOOLS
from tests.app.conftest import MODEL, World
from tests.app.reasoning import SWITCHED, reasoning_world

ANSWER = "<think>\nIs it?\n</think>\n\nIt is."
ASKED = {"role": "user", "content": "x"}


@pytest.fixture
async def world(store_server: EmbeddedStore) -> AsyncIterator[World]:
    async with reasoning_world(SWITCHED, store_server.url) as world:
        world.engine.answer = ANSWER
        yield world


async def complete(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "messages": [ASKED], **fields}
    return await world.client().chat.completions.create(**arguments)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


async def test_reasoning_is_beside_the_content(world: World) -> None:
    answer = await complete(world)
    [choice] = answer.choices
    assert (choice.message.content, choice.message.reasoning_content) == ("It is.", "Is it?")
    tokens = len(ANSWER) - len("It is.")
    assert answer.usage.completion_tokens_details.reasoning_tokens == tokens


async def test_a_stream_tells_it_first(world: World) -> None:
    options = {"include_usage": True}
    chunks = [one async for one in await complete(world, stream=True, stream_options=options)]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert deltas[0].role == "assistant"
    told = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    said = [delta.content or "" for delta in deltas]
    assert ("".join(told), "".join(said)) == ("Is it?", "It is.")
    assert max(at for at, text in enumerate(told) if text) < said.index("I")
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens > 0


async def test_each_of_several_answers_has_its_own(world: World) -> None:
    world.engine.answers = [ANSWER, "It is not.", "<think>No"]
    answer = await complete(world, n=3)
    messages = [choice.message for choice in answer.choices]
    told = [getattr(message, "reasoning_content", None) for message in messages]
    assert told == ["Is it?", None, "No"]
    assert [message.content for message in messages] == ["It is.", "It is not.", ""]


async def test_calls_log_probabilities_and_stop_strings_are_those_of_the_rest(world: World) -> None:
    world.engine.answer = f"<think>Is it?</think>\n\nOne moment.\n{CALL}"
    answer = await complete(world, tools=TOOLS, logprobs=True, stop=["Is"])
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    assert choice.message.reasoning_content == "Is it?"
    assert choice.message.tool_calls[0].function.name == "get_weather"
    assert "".join(one.token for one in choice.logprobs.content).startswith("One moment.")


async def test_a_message_comes_back_with_what_was_reasoned(world: World) -> None:
    world.engine.answer = f"<think>\nIs it?\n</think>\n\n{CALL}"
    message = (await complete(world, tools=TOOLS)).choices[0].message
    back = message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    await complete(world, tools=TOOLS, messages=[ASKED, back, result])
    before_result = f"<think>\nIs it?\n</think>\n\n{CALL}"
    assert before_result in prompt(world)
    await complete(world, tools=TOOLS, messages=[ASKED, back, result, ASKED])
    assert "<think>" not in prompt(world)


@pytest.mark.parametrize("effort", ["none", "minimal", "medium", "max"])
async def test_an_effort_switches_reasoning(world: World, effort: Any) -> None:
    await complete(world, reasoning_effort=effort)
    is_off = effort in ("none", "minimal")
    assert prompt(world).endswith("<think>\n\n</think>\n\n") is is_off


def told(**variables: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": variables}


async def test_a_template_is_told_what_a_request_names(world: World) -> None:
    await complete(world, extra_body=told(enable_thinking=False, colour=["red"]))
    assert prompt(world).endswith("<think>\n\n</think>\n\n")
    await complete(world, reasoning_effort="none", extra_body=told(enable_thinking=True))
    assert prompt(world).endswith("assistant\n")
    asked = await world.client().responses.create(
        model=MODEL, input="x", extra_body=told(enable_thinking=False)
    )
    assert prompt(world).endswith("<think>\n\n</think>\n\n")
    await world.client().responses.create(model=MODEL, input="y", previous_response_id=asked.id)
    assert prompt(world).endswith("assistant\n")


@pytest.mark.parametrize(
    ("variables", "param"),
    [
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"conversation": []}, "chat_template_kwargs.conversation"),
        ({"conversations": []}, "chat_template_kwargs.conversations"),
        ({"tools": []}, "chat_template_kwargs.tools"),
        ({"documents": []}, "chat_template_kwargs.documents"),
        ({"chat_template": "x"}, "chat_template_kwargs.chat_template"),
        ({"add_generation_prompt": False}, "chat_template_kwargs.add_generation_prompt"),
        ({"tokenize": True}, "chat_template_kwargs.tokenize"),
        ({"eos_token": "x"}, "chat_template_kwargs.eos_token"),
        ({"enable_thinking": "no"}, "chat_template_kwargs.enable_thinking"),
        ({"not a name": 1}, "chat_template_kwargs"),
        ({f"name_{number}": 1 for number in range(33)}, "chat_template_kwargs"),
        ({"long": "x" * 16_384}, "chat_template_kwargs"),
    ],
)
async def test_what_a_request_cannot_tell_the_template_is_refused_by_name(
    world: World, variables: Any, param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await complete(world, extra_body=told(**variables))
    assert refused.value.param == param
