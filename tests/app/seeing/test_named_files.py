"""Pictures that requests name by the ids of uploaded files."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from websockets.asyncio.client import connect

from app.transport.bounds import Bounds
from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import another, http_of, suspended
from tests.app.conftest import MODEL, World
from tests.app.responses.test_resume import rest_by_sse
from tests.app.scripted_engine import ScriptedEngine
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
    uploaded,
    user,
)

QUESTION = input_text("What is it? Tell me all about it.")


def named(file_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "input_image", "file_id": file_id, **fields}


async def test_an_answer_about_a_file_is_that_about_its_picture(world: World) -> None:
    file_id = await uploaded(world)
    for detail in ("auto", "low"):
        sent = await respond(world, input=[user(input_image(HELLO, detail=detail), QUESTION)])
        by_url = asked(world)
        by_id = await respond(world, input=[user(named(file_id, detail=detail), QUESTION)])
        assert asked(world).prompt == by_url.prompt
        assert asked(world).pictures == by_url.pictures
        assert by_id.output_text == sent.output_text
        assert by_id.usage.input_tokens_details.cached_tokens > by_url.pictures[0].end - 16


async def test_a_file_is_brought_as_it_was_uploaded(world: World, eyes: ScriptedEyes) -> None:
    first, second = await uploaded(world), await uploaded(world, CAT)
    eyes.looks.clear()
    content = [user(named(first), input_text(" and "), input_image(CAT), named(second))]
    await respond(world, input=content)
    assert (shown(world), brought(world)) == ([THREE, FIVE, FIVE], [HELLO, CAT, CAT])
    # What was seen lately is not read again.
    eyes.looks.clear()
    await respond(world, input=content)
    assert eyes.looks == []


async def test_results_of_calls_have_files(world: World) -> None:
    file_id = await uploaded(world)
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": [named(file_id)]}
    tools: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    said = [{"role": "user", "content": "Look."}, call, result]
    await respond(world, input=said, tools=tools)
    assert (shown(world), brought(world)) == ([THREE], [HELLO])


async def test_a_later_turn_shows_the_file_of_an_earlier_one(world: World) -> None:
    file_id = await uploaded(world)
    first = await respond(world, input=[user(named(file_id))])
    second = await respond(world, input="And?", previous_response_id=first.id)
    third = await respond(world, input=[user(input_image(CAT))], previous_response_id=second.id)
    assert (shown(world), brought(world)) == ([THREE, FIVE], [HELLO, CAT])
    # Under other instructions all is told anew.
    await respond(world, input="So?", previous_response_id=third.id, instructions="Be brief.")
    assert (shown(world), brought(world)) == ([THREE, FIVE], [HELLO, CAT])


async def test_a_deleted_file_fails_by_name_what_has_to_be_seen_again(world: World) -> None:
    file_id = await uploaded(world)
    first = await respond(world, input=[user(named(file_id))])
    await world.client().files.delete(file_id)
    with pytest.raises(openai.InternalServerError) as failed:
        await respond(world, input="And?", previous_response_id=first.id)
    assert "a picture of the conversation is not kept any more" in failed.value.message
    with pytest.raises(openai.NotFoundError) as refused:
        await respond(world, input="And?", previous_response_id=first.id, instructions="Be brief.")
    assert refused.value.code == "file_not_found"
    assert file_id in refused.value.message


async def test_input_is_listed_with_the_ids_that_were_sent(world: World) -> None:
    file_id = await uploaded(world)
    parts = [input_text("Hm?"), named(file_id, detail="low")]
    first = await respond(world, input=[user(*parts)])
    [item] = (await world.client().responses.input_items.list(first.id)).data
    assert item.to_dict()["content"] == parts
    reference: Any = {"type": "item_reference", "id": item.id}
    await respond(world, input=[reference, {"role": "user", "content": "And?"}])
    assert (shown(world), brought(world)) == ([THREE], [HELLO])


async def test_a_conversation_shows_the_files_that_it_holds(world: World) -> None:
    file_id = await uploaded(world)
    conversations = world.client().conversations
    made = await conversations.create(items=[user(named(file_id))])
    last = await respond(world, input="And?", conversation=made.id)
    assert (shown(world), brought(world)) == ([THREE], [HELLO])
    listed = [item.to_dict() async for item in conversations.items.list(made.id, order="asc")]
    assert listed[0]["content"] == [named(file_id)]
    await respond(world, input="So?", previous_response_id=last.id)
    assert brought(world) == [HELLO]
    await world.client().files.delete(file_id)
    with pytest.raises(openai.NotFoundError) as refused:
        await respond(world, input="And now?", conversation=made.id)
    assert (refused.value.code, refused.value.param) == (
        "file_not_found",
        "conversation[0].content[0].file_id",
    )


async def test_a_socket_shows_files_too(world: World) -> None:
    file_id = await uploaded(world)
    async with connect(world.ws_url, additional_headers=world.headers()) as socket:

        async def ask(**fields: Any) -> Any:
            message = {"type": "response.create", "model": MODEL, "store": False, **fields}
            await socket.send(json.dumps(message))
            while True:
                event = json.loads(await socket.recv())
                if event["type"] in ("response.completed", "error"):
                    return event

        first = await ask(input=[user(named(file_id))])
        assert (shown(world), brought(world)) == ([THREE], [HELLO])
        await ask(input="And?", previous_response_id=first["response"]["id"])
        assert (shown(world), brought(world)) == ([THREE], [HELLO])
        refused = await ask(input=[user(named("file-none"))])
        assert (refused["status"], refused["error"]["code"]) == (404, "file_not_found")
        assert refused["error"]["param"] == "input[0].content[0].file_id"


async def test_another_tenants_file_is_like_one_that_never_was(world: World) -> None:
    file_id = await uploaded(world)
    told = []
    for wanted in (file_id, "file-none", "pw:{acme}:x"):
        with pytest.raises(openai.NotFoundError) as refused:
            await world.client("umbra").responses.create(
                model=MODEL,
                input=[user(named(wanted))],  # type: ignore[list-item]
            )
        assert refused.value.code == "file_not_found"
        assert refused.value.param == "input[0].content[0].file_id"
        told.append(refused.value.message.replace(wanted, ""))
    assert len(set(told)) == 1
    assert world.engine.requests == []


async def test_one_of_url_and_id_is_sent(world: World) -> None:
    both = input_image(HELLO, file_id="file-1")
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(both)])
    assert refused.value.param == "input[0].content[0].file_id"
    assert "both 'image_url' and 'file_id'" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user({"type": "input_image", "detail": "low"})])
    assert refused.value.param == "input[0].content[0].image_url"
    assert "or 'file_id' in its place" in refused.value.message
    file_id = await uploaded(world)
    await respond(world, input=[user(named(file_id, image_url=None))])
    await respond(world, input=[user(input_image(HELLO, file_id=None))])


async def test_no_url_stands_for_a_file(world: World) -> None:
    file_id = await uploaded(world)
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user({"type": "input_image", "image_url": file_id})])
    assert refused.value.code == "invalid_image"


async def test_files_count_in_the_limits_of_pictures(world: World) -> None:
    file_id = await uploaded(world)
    await world.limit("acme", images=2)
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(*[named(file_id)] * 3)])
    assert (refused.value.code, refused.value.param) == (
        "too_many_images",
        "input[0].content[2].file_id",
    )


@pytest.mark.parametrize("limits", [Bounds(max_image_bytes=5000)])
async def test_files_of_one_request_have_so_many_bytes_together(world: World) -> None:
    file_id = await uploaded(world, b"3" * 3000)
    await respond(world, input=[user(named(file_id))])
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[user(named(file_id), named(file_id))])
    assert "has more than 2000 bytes" in refused.value.message


async def test_what_is_read_of_files_is_held_within_the_room_for_bodies(world: World) -> None:
    file_id = await uploaded(world, b"3" * 200_000)
    intake = world.app.state.service.intake
    taken = 64 * 1024 * 1024 - 100_000
    assert intake.take("acme", taken)
    with pytest.raises(openai.RateLimitError) as refused:
        await respond(world, input=[user(named(file_id))])
    assert refused.value.code == "queue_full"
    intake.give_back("acme", taken)
    await respond(world, input=[user(named(file_id))])
    assert intake._held.total() == 0


async def test_what_others_have_seen_of_a_file_is_not_told(
    world: World, eyes: ScriptedEyes
) -> None:
    file_id = await uploaded(world)
    eyes.looks.clear()
    content = [user(named(file_id), QUESTION)]
    await respond(world, input=content)
    bobs = await respond(world, input=content, safety_identifier="bob")
    assert bobs.usage.input_tokens_details.cached_tokens == 0
    assert eyes.looks == [(HELLO, "auto")] * 2


async def test_an_answer_about_a_file_goes_on_after_a_restart(
    world: World, store_server: EmbeddedStore, engine: ScriptedEngine
) -> None:
    world.engine.answer = "a b c d e f g h"
    file_id = await uploaded(world)
    before = await suspended(world, 5, input=[user(named(file_id))])
    next_engine = ScriptedEngine(engine.tokenizer)
    next_engine.picture_token_id = engine.picture_token_id
    async with another(world, store_server, next_engine) as after, http_of(after) as http:
        rest = await rest_by_sse(http, before[-1]["response"]["id"])
        assert rest[-1]["type"] == "response.completed"
        assert (shown(after), brought(after)) == ([THREE], [HELLO])


async def test_a_prompt_with_a_file_is_compacted_and_counted(world: World) -> None:
    file_id = await uploaded(world)
    content = [user(named(file_id), QUESTION)]
    count = await world.client().responses.input_tokens.count(model=MODEL, input=content)  # type: ignore[arg-type]
    said = await respond(world, input=content)
    assert count.input_tokens == said.usage.input_tokens
    await world.client().responses.compact(model=MODEL, input=content)  # type: ignore[arg-type]
    assert THREE in prompt(world)
