"""Pictures in what is kept: chains of responses, conversations, compaction, truncation."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from websockets.asyncio.client import connect

from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import another, http_of, suspended
from tests.app.conftest import MODEL, World, eventually
from tests.app.responses.test_resume import rest_by_sse
from tests.app.scripted_engine import ScriptedEngine
from tests.app.seeing.conftest import (
    CAT,
    FIVE,
    HELLO,
    THREE,
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


async def test_a_later_turn_shows_what_was_shown_before(world: World) -> None:
    first = await respond(world, input=[user(input_image(HELLO), input_text("Hm?"))])
    begun = asked(world)
    second = await respond(
        world, input=[user(input_text("And "), input_image(CAT))], previous_response_id=first.id
    )
    third = await respond(world, input="So?", previous_response_id=second.id)
    assert shown(world) == [THREE, FIVE]
    assert asked(world).pictures[0] == begun.pictures[0]
    assert third.usage.input_tokens_details.cached_tokens > asked(world).pictures[1].end - 16
    # Neither was brought by this turn's request, and the engine has forgotten both.
    assert brought(world) == [HELLO, CAT]


async def test_a_picture_that_is_not_kept_any_more_fails_by_name(world: World) -> None:
    first = await respond(world, input=[user(input_image(HELLO))])
    second = await respond(world, input="And?", previous_response_id=first.id)
    await world.client().responses.delete(first.id)
    with pytest.raises(openai.InternalServerError) as failed:
        await respond(world, input="So?", previous_response_id=second.id)
    assert "a picture of the conversation is not kept any more" in failed.value.message


async def test_other_instructions_tell_pictures_anew(world: World) -> None:
    first = await respond(world, input=[user(input_image(HELLO), input_text("Hm?"))])
    second = await respond(
        world, input="And?", previous_response_id=first.id, instructions="Be brief."
    )
    assert prompt(world).startswith("<|im_start|>system\nBe brief.")
    assert shown(world) == [THREE]
    await respond(world, input="So?", previous_response_id=second.id)
    assert (shown(world), brought(world)) == ([THREE], [HELLO])


async def test_input_is_listed_with_its_pictures(world: World) -> None:
    parts = [input_text("Hm?"), input_image(HELLO, detail="low")]
    include: Any = ["message.input_image.image_url"]
    first = await respond(world, input=[user(*parts)], include=include)
    [item] = (await world.client().responses.input_items.list(first.id, include=include)).data
    content = item.to_dict()["content"]
    assert content == parts
    reference: Any = {"type": "item_reference", "id": item.id}
    second = await respond(world, input=[reference, {"role": "user", "content": "And?"}])
    assert shown(world) == [THREE]
    await respond(world, input="So?", previous_response_id=second.id)
    assert brought(world) == [HELLO]


async def test_a_conversation_shows_what_it_holds(world: World) -> None:
    conversations = world.client().conversations
    made = await conversations.create(items=[user(input_image(HELLO))])
    await respond(world, input=[user(input_image(CAT))], conversation=made.id)
    last = await respond(world, input="And?", conversation=made.id)
    assert (shown(world), brought(world)) == ([THREE, FIVE], [HELLO, CAT])
    listed = [item.to_dict() async for item in conversations.items.list(made.id, order="asc")]
    assert listed[0]["content"] == [input_image(HELLO)]
    await respond(world, input="So?", previous_response_id=last.id)
    assert brought(world) == [HELLO, CAT]


async def test_a_socket_goes_on_with_a_picture_that_it_alone_knows(world: World) -> None:
    async with connect(world.ws_url, additional_headers=world.headers()) as socket:

        async def ask(**fields: Any) -> Any:
            message = {"type": "response.create", "model": MODEL, "store": False, **fields}
            await socket.send(json.dumps(message))
            while True:
                event = json.loads(await socket.recv())
                if event["type"] in ("response.completed", "error"):
                    return event

        first = await ask(input=[user(input_image(HELLO))])
        await ask(input="And?", previous_response_id=first["response"]["id"])
        assert (shown(world), brought(world)) == ([THREE], [HELLO])
        refused = await ask(input=[user(input_image(b"none"))])
        assert refused["error"]["param"] == "input[0].content[0].image_url"


async def test_a_conversation_with_pictures_is_compacted(world: World) -> None:
    compact = world.client().responses.compact
    made = await compact(model=MODEL, input=[user(input_image(HELLO))])
    assert shown(world) == [THREE]
    await respond(world, input=[*[one.to_dict() for one in made.output], user(input_text("And?"))])
    assert shown(world) == []


async def test_pictures_go_with_the_turns_that_are_left_out(world: World) -> None:
    long = input_text("word " * 90)
    fields: dict[str, Any] = {"truncation": "auto", "max_output_tokens": 10}
    last = await respond(world, input=[user(input_image(HELLO), long)], **fields)
    for number in range(6):
        picture = input_image(f"{number + 1} of turn {number}".encode())
        last = await respond(
            world, input=[user(picture, long)], previous_response_id=last.id, **fields
        )
    counts = [len(one) for one in shown(world)]
    assert len(counts) < 7
    texts = [f"<|mark|>{'<image>' * (one.count - 2)}<|mark|>" for one in asked(world).pictures]
    assert shown(world) == texts
    files = brought(world)
    assert files[0] == HELLO
    assert files[-1] == b"6 of turn 5"
    said: list[Any] = []
    for number in range(8):
        said.append(user(input_image(f"{number + 1} told".encode()), long))
        said.append({"role": "assistant", "content": "Yes."})
    await respond(world, input=said[:-1], **fields)
    assert brought(world)[0] == b"1 told"
    assert brought(world)[-1] == b"8 told"
    assert len(brought(world)) < 8


async def test_a_prompt_with_a_picture_is_computed_ahead(world: World) -> None:
    content = [user(input_image(HELLO), input_text("What is it? Tell me all about it."))]
    first = await respond(world, input=content, extra_body={"generate": False})
    await respond(world, input="Go on.", previous_response_id=first.id)
    assert (shown(world), brought(world)) == ([THREE], [HELLO])
    again = await respond(world, input=content)
    assert again.usage.input_tokens_details.cached_tokens > asked(world).pictures[0].end


async def test_breakpoints_lie_behind_pictures(world: World) -> None:
    mark = {"mode": "explicit"}
    parts = [input_text("See: "), input_image(HELLO, prompt_cache_breakpoint=mark), input_text("?")]
    await respond(
        world, input=[user(*parts)], extra_body={"prompt_cache_options": {"mode": "explicit"}}
    )
    assert asked(world).cache.up_to == asked(world).pictures[0].end


async def test_diagnostics_know_one_picture_from_another(world: World) -> None:
    question = input_text("What is it? Tell me all about it.")
    first = await respond(world, input=[user(input_image(HELLO), question)])
    options = {"prompt_cache_options": {"comparison_response_id": first.id}}
    other = await respond(
        world, input=[user(input_image(b"3 other"), question)], extra_body=options
    )
    told = other.to_dict()["prompt_cache_diagnostics"]
    assert (told["type"], told["reason"]) == ("cache_miss", "input_changed")
    assert told["comparison_reusable_tokens"] == asked(world).pictures[0].start
    same = await respond(world, input=[user(input_image(HELLO), question)], extra_body=options)
    assert same.to_dict()["prompt_cache_diagnostics"]["type"] == "cache_hit"


async def test_stored_completions_show_their_pictures(world: World) -> None:
    part: Any = {"type": "image_url", "image_url": {"url": url(HELLO)}}
    completions = world.client().chat.completions
    made = await completions.create(model=MODEL, messages=[user(part)], store=True)  # type: ignore[list-item]
    messages = await completions.messages.list(made.id)
    assert messages.data[0].to_dict()["content_parts"] == [part]


async def test_a_background_response_and_one_that_is_left_take_pictures_too(world: World) -> None:
    response = await respond(world, input=[user(input_image(HELLO))], background=True)
    await eventually(lambda: len(world.engine.ended) == 1)
    assert (shown(world), brought(world)) == ([THREE], [HELLO])
    retrieved = await world.client().responses.retrieve(response.id)
    assert retrieved.status in ("in_progress", "completed")


async def test_an_answer_about_a_picture_goes_on_after_a_restart(
    world: World, store_server: EmbeddedStore, engine: ScriptedEngine
) -> None:
    world.engine.answer = "a b c d e f g h"
    made = await world.client().conversations.create(items=[user(input_image(CAT))])
    asking = {"input": [user(input_image(HELLO))], "conversation": made.id}
    before = await suspended(world, 5, **asking)
    next_engine = ScriptedEngine(engine.tokenizer)
    next_engine.picture_token_id = engine.picture_token_id
    async with another(world, store_server, next_engine) as after, http_of(after) as http:
        rest = await rest_by_sse(http, before[-1]["response"]["id"])
        assert rest[-1]["type"] == "response.completed"
        assert (shown(after), brought(after)) == ([FIVE, THREE], [CAT, HELLO])
