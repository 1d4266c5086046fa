"""Pictures in each of the APIs: where they are taken, what the engine is asked, what is refused."""

from __future__ import annotations

import base64
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.app.conftest import MODEL, World
from tests.app.messages.asking import client as messages_client
from tests.app.messages.asking import create as create_message
from tests.app.messages.asking import stream as stream_message
from tests.app.seeing.conftest import (
    CAT,
    FIVE,
    HELLO,
    THREE,
    ScriptedEyes,
    asked,
    brought,
    input_image,
    input_text,
    prompt,
    respond,
    shown,
    url,
    user,
)

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def image_url(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), **fields}}


def image(data: bytes, **fields: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source, **fields}


async def complete(world: World, *parts: Any, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": list(parts)}]
    return await world.client().chat.completions.create(
        **{"model": MODEL, "messages": messages, **fields}
    )


def check_both(world: World) -> None:
    """The engine was asked about two pictures, between words, and was brought both."""
    assert f"<|im_start|>user\nA {THREE} and {FIVE} here<|im_end|>" in prompt(world)
    assert shown(world) == [THREE, FIVE]
    assert brought(world) == [HELLO, CAT]


async def test_responses_take_pictures_where_they_stand(world: World) -> None:
    parts = [
        input_text("A "),
        input_image(HELLO),
        input_text(" and "),
        input_image(CAT),
        input_text(" here"),
    ]
    response = await respond(world, input=[user(*parts)])
    check_both(world)
    assert response.usage.input_tokens == len(asked(world).prompt)


async def test_completions_take_pictures_where_they_stand(world: World) -> None:
    text = {"type": "text"}
    completion = await complete(
        world,
        {**text, "text": "A "},
        image_url(HELLO),
        {**text, "text": " and "},
        image_url(CAT),
        {**text, "text": " here"},
    )
    check_both(world)
    assert completion.usage.prompt_tokens == len(asked(world).prompt)


async def test_messages_take_pictures_where_they_stand(world: World) -> None:
    text = {"type": "text"}
    content = [
        {**text, "text": "A "},
        image(HELLO),
        {**text, "text": " and "},
        image(CAT),
        {**text, "text": " here"},
    ]
    await create_message(world, messages=[{"role": "user", "content": content}])
    check_both(world)


async def test_answers_about_pictures_are_streamed(world: World) -> None:
    events = [
        one async for one in await respond(world, input=[user(input_image(HELLO))], stream=True)
    ]
    assert events[-1].type == "response.completed"
    chunks = [one async for one in await complete(world, image_url(HELLO), stream=True)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    _, message = await stream_message(world, messages=[user(image(HELLO))])
    assert message.stop_reason == "end_turn"
    assert [len(request.pictures) for request in world.engine.requests] == [1, 1, 1]


async def test_results_of_calls_have_pictures(world: World) -> None:
    tools: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    result = {"type": "function_call_output", "call_id": "c1"}
    output = [input_text("Seen: "), input_image(HELLO)]
    said = [{"role": "user", "content": "Look."}, CALL, {**result, "output": output}]
    await respond(world, input=said, tools=tools)
    assert f"Seen: {THREE}" in prompt(world)
    content = [{"type": "text", "text": "Seen: "}, image(CAT)]
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        user({"type": "tool_result", "tool_use_id": "c1", "content": content, "is_error": True}),
    ]
    named = {"name": "look", "input_schema": {"type": "object"}}
    await create_message(world, messages=turns, tools=[named])
    assert f"Error: Seen: {FIVE}" in prompt(world)
    assert brought(world) == [CAT]


async def test_how_closely_to_look_is_told(world: World, eyes: ScriptedEyes) -> None:
    await respond(world, input=[user(input_image(HELLO, detail="low"))])
    await complete(world, image_url(HELLO, detail="high"))
    assert {(HELLO, "low"), (HELLO, "high")} <= set(eyes.looks)
    [low, high] = (request.pictures[0].name for request in world.engine.requests)
    assert low != high


async def test_a_text_that_spells_a_picture_is_a_text(world: World) -> None:
    text = f"<image> \ufdd1 {THREE} <|mark|>"
    await respond(world, input=[user(input_text(text), input_image(HELLO))])
    assert shown(world) == [THREE]
    picture = asked(world).prompt[asked(world).pictures[0].start :]
    assert asked(world).prompt.count(world.engine.picture_token_id or 0) == 3
    assert picture.count(world.engine.picture_token_id or 0) == 3
    said = {"role": "assistant", "content": "<image>"}
    await complete(
        world, image_url(CAT), messages=[said, {"role": "user", "content": [image_url(CAT)]}]
    )
    assert asked(world).prompt.count(world.engine.picture_token_id or 0) == 5


async def test_tokens_of_pictures_are_counted(world: World) -> None:
    content = [user(input_text("A "), input_image(HELLO))]
    response = await respond(world, input=content)
    count = await world.client().responses.input_tokens.count(model=MODEL, input=content)
    assert count.input_tokens == response.usage.input_tokens
    message = await create_message(world, messages=[user(image(CAT))])
    async with messages_client(world) as asking:
        tokens = await asking.messages.count_tokens(model=MODEL, messages=[user(image(CAT))])
    assert tokens.input_tokens == message.usage.input_tokens
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as plain:
        body = {"messages": [user(image_url(CAT))]}
        tokenized = (await plain.post("/tokenize", json=body)).json()
    assert tokenized["tokens"] == asked(world).prompt
    await world.limit("acme", tokens_per_minute=20)
    with pytest.raises(openai.RateLimitError):
        await respond(world, input=[user(*[input_image(b"9 large")] * 3)], max_output_tokens=1)


async def test_the_same_picture_of_others_is_another(world: World) -> None:
    content = [user(input_image(HELLO), input_text("What is it?"))]
    mine = [await respond(world, input=content) for _ in range(2)]
    assert mine[1].usage.input_tokens_details.cached_tokens > 0
    theirs = await world.client("umbra").responses.create(model=MODEL, input=content)
    bobs = await respond(world, input=content, safety_identifier="bob")
    found = [one.usage.input_tokens_details.cached_tokens for one in (theirs, bobs)]
    assert found == [0, 0]
    names = [request.pictures[0].name for request in world.engine.requests]
    assert names[0] == names[1]
    assert len(set(names)) == 3


async def test_other_pictures_in_the_same_place_are_not_found(world: World) -> None:
    question = input_text("What is it? Tell me all about it.")
    await respond(world, input=[user(input_image(HELLO), question)])
    other = await respond(world, input=[user(input_image(b"3 other"), question)])
    assert other.usage.input_tokens_details.cached_tokens < asked(world).pictures[0].start + 16


@pytest.mark.parametrize(
    ("part", "param", "code", "words"),
    [
        (input_image(b"none"), "image_url", "invalid_image", "is none of PNG"),
        ({"type": "input_image", "image_url": "data:,x"}, "image_url", "invalid_image", "base64"),
        (
            {"type": "input_image", "image_url": "https://example.com/a.png"},
            "image_url",
            "invalid_image",
            "not fetched here",
        ),
        ({"type": "input_image"}, "image_url", "missing_required_parameter", ""),
        (input_image(HELLO, detail="huge"), "detail", "invalid_value", ""),
        ({"type": "input_file"}, "", "unsupported_value", "only text and images"),
    ],
)
async def test_what_cannot_be_shown_is_refused_by_its_name(
    world: World, part: dict[str, Any], param: str, code: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(input_text("See:"), part)])
    assert refused.value.param == f"input[0].content[1].{param}".rstrip(".")
    assert refused.value.code == code
    assert words in refused.value.message
    assert world.engine.requests == []


async def test_each_api_names_its_part(world: World) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await complete(world, image_url(b"none"))
    assert refused.value.param == "messages[0].content[0].image_url.url"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await create_message(world, messages=[user(image(b"none"))])
    assert "'messages[0].content[0].source.data' is none of PNG" in str(wrong.value)
    file = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await create_message(world, messages=[user(file)])
    assert "only sources of type base64 and url" in str(wrong.value)


async def test_only_users_and_results_have_pictures(world: World) -> None:
    for role in ("assistant", "system", "developer"):
        said: Any = [{"role": role, "content": [input_image(HELLO)]}, user(input_text("Hm?"))]
        with pytest.raises(openai.BadRequestError) as refused:
            await respond(world, input=said)
        assert refused.value.param == "input[0].content[0].image_url"
    with pytest.raises(anthropic.BadRequestError):
        await create_message(
            world, messages=[{"role": "assistant", "content": [image(HELLO)]}, user(image(HELLO))]
        )


async def test_a_conversation_has_so_many_pictures(world: World, eyes: ScriptedEyes) -> None:
    await world.limit("acme", images=2)
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(*[input_image(HELLO)] * 3)])
    assert (refused.value.code, refused.value.param) == (
        "too_many_images",
        "input[0].content[2].image_url",
    )
    assert eyes.looks == []
    first = await respond(world, input=[user(*[input_image(HELLO)] * 2)])
    await respond(world, input="And?", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(input_image(CAT))], previous_response_id=first.id)
    assert refused.value.code == "too_many_images"


async def test_a_picture_that_is_sent_again_is_looked_at_once_by_each_who_shares_it(
    world: World, eyes: ScriptedEyes
) -> None:
    content = [user(input_image(HELLO), input_text("What is it?"))]
    for _ in range(2):
        await respond(world, input=content)
    assert eyes.looks == [(HELLO, "auto")]
    for _ in range(2):
        await respond(world, input=content, safety_identifier="bob")
        await respond(world, input=content, prompt_cache_key="k")
        await world.client("umbra").responses.create(model=MODEL, input=content)
    assert eyes.looks == [(HELLO, "auto")] * 4


async def test_a_model_that_sees_nothing_says_so_before_it_looks(
    world: World, eyes: ScriptedEyes
) -> None:
    world.app.state.service.generations.sight.eyes = None
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(input_image(b"none"))])
    assert "image input: this model does not see" in refused.value.message
    assert refused.value.code == "unsupported_value"
    with pytest.raises(anthropic.BadRequestError):
        await create_message(world, messages=[user(image(HELLO))])
    with pytest.raises(openai.BadRequestError):
        await world.client().conversations.create(items=[user(input_image(HELLO))])
    assert eyes.looks == []
