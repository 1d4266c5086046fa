"""gpt-oss's channels over the Responses API: reasoning, calls and what is said in one format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import MODEL, World
from tests.app.reasoning import HARMONY, reasoning_world
from tests.app.responses.test_tools import TOOL, result_of

LOOKING = "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant"
SAYING = "<|channel|>final<|message|>It is."
CALLS = (
    ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Bonn"}',
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bonn"}',
)


@pytest.fixture
async def world(store_server: EmbeddedStore) -> AsyncIterator[World]:
    async with reasoning_world(HARMONY, store_server.url) as world:
        yield world


async def respond(world: World, answer: str, end: str = "<|return|>", **fields: Any) -> Any:
    world.engine.answer = answer
    world.engine.eos = world.engine.tokenizer.convert_tokens_to_ids(end)
    return await world.client().responses.create(**{"model": MODEL, "input": "x", **fields})


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


async def test_channels_are_items(world: World) -> None:
    spoken = "<|channel|>commentary<|message|>A moment.<|end|><|start|>assistant"
    response = await respond(world, LOOKING + spoken + LOOKING + SAYING)
    assert [item.type for item in response.output] == ["reasoning", "message"] * 2
    assert [item.content[0].text for item in response.output] == [
        "Where?", "A moment.", "Where?", "It is.",
    ]  # fmt: skip
    [message] = (await respond(world, SAYING)).output
    assert message.content[0].text == "It is."


@pytest.mark.parametrize("called", CALLS)
async def test_a_call_and_its_result_go_the_conversation_on(world: World, called: str) -> None:
    first = await respond(world, LOOKING + called, "<|call|>", tools=[TOOL])
    reasoning, call = first.output
    assert reasoning.content[0].text == "Where?"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Bonn"})
    result = [result_of(call)]
    second = await respond(world, SAYING, input=result, previous_response_id=first.id)
    assert second.output_text == "It is."
    said = f"{called}<|call|><|start|>functions.x to=assistant<|channel|>commentary<|message|>"
    assert prompt(world).endswith(f'{LOOKING}{said}"sunny"<|end|><|start|>assistant')
    third = await respond(world, LOOKING + SAYING, previous_response_id=second.id)
    assert prompt(world).endswith(
        f'<|start|>assistant{said}"sunny"<|end|>'
        f"<|start|>assistant{SAYING}<|end|><|start|>user<|message|>x<|end|><|start|>assistant"
    )
    await respond(world, SAYING, previous_response_id=third.id)
    assert "Where?" not in prompt(world)
    assert "<|return|>" not in prompt(world)


async def test_an_effort_is_in_the_system_text(world: World) -> None:
    for effort, word in (("high", "high"), ("none", "low"), (None, "medium")):
        reasoning: Any = {"effort": effort}
        await respond(world, SAYING, reasoning=reasoning)
        assert f"Reasoning: {word}<|end|>" in prompt(world)


async def test_log_probabilities_are_those_of_what_is_said(world: World) -> None:
    include = ["message.output_text.logprobs"]
    for answer in (SAYING, LOOKING + SAYING):
        response = await respond(world, answer, include=include)
        told = response.output[-1].content[0].logprobs
        assert "".join(one.token for one in told) == "It is."


async def test_a_format_holds_in_the_final_channel(world: World) -> None:
    text: Any = {"format": {"type": "json_object"}}
    response = await respond(world, LOOKING + "<|channel|>final<|message|>{}", text=text)
    assert response.output_text == "{}"
    grammar = world.engine.requests[-1].grammar
    assert grammar is not None
    ends = {world.engine.tokenizer.convert_tokens_to_ids(one) for one in ("<|end|>", "<|start|>")}
    assert ends <= set(grammar.tokens)
    assert grammar.preamble.count("<[") == 7, "that JSON follows may be said, too"
