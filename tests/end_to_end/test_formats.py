"""The real model, over the API, held to formats, while others chat beside it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
from llguidance import LLMatcher, LLTokenizer
from openai import AsyncOpenAI
from pydantic import BaseModel

from bench.common.service import Service
from tests.end_to_end.test_exactness import ask, expected, open_socket, text_of

__all__ = ["expected"]


class Wall(BaseModel):
    material: Literal["brick", "wood", "glass"]
    height: Literal[1, 2, 3]
    shared: bool


@pytest.fixture
def client(service: Service, api_key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{service.url}/v1", api_key=api_key, max_retries=0)


async def test_formats_hold_and_nobody_beside_them_notices(
    service: Service, api_key: str, client: AsyncOpenAI, questions: list[str], expected: list[str]
) -> None:
    model = (await client.models.list()).data[0].id

    async def chat(number: int) -> str:
        async with open_socket(service, api_key) as socket:
            return text_of(await ask(socket, questions[number], safety_identifier=f"f{number}"))

    async def parsed() -> Wall | None:
        response = await client.responses.parse(
            model=model,
            input="Describe a wall.",
            text_format=Wall,
            temperature=0,  # drawn at random, it writes nothing but spaces now and then
            max_output_tokens=80,
        )
        return response.output_parsed

    async def choices() -> list[str]:
        completion = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Give a date."}],
            n=3,
            max_tokens=40,
            extra_body={"structured_outputs": {"regex": "20[0-9]{2}-[01][0-9]-[0-3][0-9]"}},
        )
        assert {choice.finish_reason for choice in completion.choices} == {"stop"}
        return [choice.message.content or "" for choice in completion.choices]

    wall, dates, *chats = await asyncio.gather(parsed(), choices(), chat(0), chat(1))
    assert isinstance(wall, Wall)
    assert all(re.fullmatch("20[0-9]{2}-[01][0-9]-[0-3][0-9]", date) for date in dates)
    assert chats == expected[:2]


async def test_a_streamed_answer_is_valid_or_told_to_be_incomplete(
    service: Service, api_key: str
) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"size": {"enum": ["small", "large"]}, "rooms": {"enum": [1, 2, 3]}},
        "required": ["size", "rooms"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "flat", "schema": schema}}
    async with open_socket(service, api_key) as socket:
        whole = await ask(socket, "Describe a flat.", text=form, max_output_tokens=60)
        assert whole["status"] == "completed"
        assert jsonschema_rs.validator_for(schema).is_valid(json.loads(text_of(whole)))
        cut = await ask(socket, "Describe a flat.", text=form, max_output_tokens=3)
        assert cut["status"] == "incomplete"
        assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
        assert text_of(whole).startswith(text_of(cut))


async def test_a_small_model_calls_right_where_it_has_to(client: AsyncOpenAI) -> None:
    function = openai.pydantic_function_tool(Wall, name="build")
    model = (await client.models.list()).data[0].id
    completion = await client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Build a wall of bricks."}],
        tools=[function],
        tool_choice="required",
        parallel_tool_calls=False,
        n=2,
        max_tokens=100,
    )
    for choice in completion.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, Wall)


async def test_a_small_model_writes_texts_that_follow_the_grammar(client: AsyncOpenAI) -> None:
    source = 'start: term (SIGN term)~1..3\nterm: /[1-9]/ | "(" /[1-9]/ ")"\nSIGN: "+" | "-"'
    grammar = {"syntax": "lark", "definition": source}
    model = (await client.models.list()).data[0].id
    tool: dict[str, Any] = {"type": "custom", "name": "add", "description": "Adds numbers."}
    response = await client.responses.create(
        model=model,
        input="What is two plus three?",
        tools=[{**tool, "format": {"type": "grammar", **grammar}}],  # type: ignore[list-item]
        tool_choice={"type": "custom", "name": "add"},
        max_output_tokens=60,
    )
    [called] = response.output
    assert called.type == "custom_tool_call"
    assert (response.status, derives(source, called.input)) == ("completed", True)
    custom: Any = {**tool, "format": {"type": "grammar", "grammar": grammar}}
    del custom["type"]
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Take one from nine."}],
        tools=[{"type": "custom", "custom": custom}],
        tool_choice="required",
        max_tokens=60,
        stream=True,
    )
    chunks = [chunk.choices[0].to_dict() async for chunk in stream]
    told = [call["custom"] for one in chunks for call in one["delta"].get("tool_calls", ())]
    text = "".join(one["input"] for one in told)
    assert told[0]["name"] == "add"
    assert (chunks[-1]["finish_reason"], derives(source, text)) == ("tool_calls", True)


def derives(source: str, text: str) -> bool:
    """Whether a grammar in Lark derives a text."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(source))
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


async def test_a_hostile_schema_is_refused_by_name(client: AsyncOpenAI) -> None:
    hostile = "start: A\nA: /.*a.{40}/ & /.*b.{40}/ & ~/.*c.{40}/"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(
            input="hi", extra_body={"structured_outputs": {"grammar": hostile}}
        )
    assert refused.value.param == "structured_outputs.grammar"
