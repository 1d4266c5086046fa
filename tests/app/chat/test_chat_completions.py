"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.app.conftest import MODEL, World

HELLO = [{"role": "user", "content": "hello"}]


async def complete(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "messages": HELLO, **fields}
    return await world.client().chat.completions.create(**arguments)


async def test_a_completion_is_whole(world: World) -> None:
    completion = await complete(world)
    assert completion.choices[0].message.content == "You said: hello"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens == len(world.engine.requests[-1].prompt)
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    again = await complete(world)
    assert again.usage.prompt_tokens_details.cached_tokens > 0


async def test_a_stream_reports_usage_only_when_asked(world: World) -> None:
    chunks = [chunk async for chunk in await complete(world, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)
    options = {"include_usage": True}
    chunks = [c async for c in await complete(world, stream=True, stream_options=options)]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert "usage" in chunks[0].model_fields_set
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len("You said: hello") + 1


async def test_half_a_character_is_never_streamed(world: World) -> None:
    world.engine.answer = "naïve 🙂 日本"
    chunks = [chunk async for chunk in await complete(world, stream=True)]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == "naïve 🙂 日本"
    assert not any("\ufffd" in piece for piece in pieces)


async def test_stop_strings_never_leak_a_part(world: World) -> None:
    world.engine.answer = "abc STO and STOP here"
    chunks = [chunk async for chunk in await complete(world, stream=True, stop=["STOP"])]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "abc STO and "
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_logprobs_cover_exactly_the_answer(world: World) -> None:
    completion = await complete(world, logprobs=True, top_logprobs=3)
    content = completion.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == "You said: hello"
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert content[0].logprob == -0.5
    chunks = [c async for c in await complete(world, logprobs=True, stream=True)]
    tokens = [
        entry.token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert "".join(tokens) == "You said: hello"


async def test_length_is_reported(world: World) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        completion = await complete(world, **{field: 3})
        assert completion.choices[0].finish_reason == "length"
        assert completion.choices[0].message.content == "You"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0]"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"extra_body": {"colour": 1}}, "colour"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
                ]
            },
            "messages[0].content[0]",
        ),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, **fields)
    assert refused.value.param == param
    assert not world.engine.requests


async def test_an_engine_failure_is_a_500(world: World) -> None:
    world.engine.die_after = 2
    with pytest.raises(openai.InternalServerError, match="the engine died"):
        await complete(world)
