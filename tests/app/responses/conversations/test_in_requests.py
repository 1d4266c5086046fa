"""Responses in a conversation: what was said before comes first, and what is said is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, InternalServerError, NotFoundError

from app.late_writes import LateWrites
from app.responses.conversations import ConversationStore
from tenants.errors import StoreUnavailable
from tests.app.conftest import MODEL, World, eventually
from tests.app.responses.conversations.test_api import texts, user
from tests.app.responses.test_responses_ws import socket, text_of


@pytest.fixture
def client(world: World) -> AsyncOpenAI:
    return world.client()


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


async def test_what_was_said_comes_before_the_input(client: AsyncOpenAI, world: World) -> None:
    made = await client.conversations.create(items=[user("zero")])
    first = await client.responses.create(model=MODEL, input="one", conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    stored = await client.responses.retrieve(first.id)
    assert stored.conversation == first.conversation
    await client.responses.create(
        model=MODEL, input="two", conversation={"id": made.id}, instructions="Be brief."
    )
    in_conversation = prompt(world)
    said = ["zero", "one", "You said: one", "two", "You said: two"]
    assert await texts(client, made.id) == said
    roles = ["user", "user", "assistant", "user"]
    whole: Any = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    await client.responses.create(model=MODEL, input=whole, instructions="Be brief.")
    assert in_conversation == prompt(world)


async def test_counting_says_nothing_in_a_conversation(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("zero")])
    body: Any = {"model": MODEL, "input": "one", "conversation": made.id}
    counted = await client.responses.input_tokens.count(**body)
    assert await texts(client, made.id) == ["zero"]
    answered = await client.responses.create(**body)
    assert answered.usage is not None
    assert counted.input_tokens == answered.usage.input_tokens


async def test_items_keep_the_ids_of_their_response(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    response = await client.responses.create(
        model=MODEL,
        input="one",
        conversation=made.id,
        include=["message.output_text.logprobs"],
        top_logprobs=1,
    )
    [answer, asked] = (await client.conversations.items.list(made.id)).data
    assert answer.id == response.output[0].id
    assert answer.content[0].logprobs == []  # type: ignore[union-attr]
    [listed] = (await client.responses.input_items.list(response.id)).data
    assert asked.id == listed.id


async def test_a_response_that_is_not_stored_is_said_all_the_same(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    await client.responses.create(model=MODEL, input="one", conversation=made.id, store=False)
    assert await texts(client, made.id) == ["one", "You said: one"]


async def test_a_socket_has_conversations_too(world: World, client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    async with socket(world) as ws:
        await ws.create("one", conversation=made.id)
        assert text_of(await ws.turn()) == "You said: one"
        await ws.create("two", conversation={"id": made.id}, store=False)
        assert (await ws.turn())[-1]["response"]["conversation"] == {"id": made.id}
        for elsewhere in ("conv_elsewhere", "}:*"):
            await ws.create("three", conversation=elsewhere)
            assert (await ws.turn())[-1]["error"]["code"] == "conversation_not_found"
    assert await texts(client, made.id) == ["one", "You said: one", "two", "You said: two"]


async def test_calls_wait_in_the_conversation_for_their_results(
    client: AsyncOpenAI, world: World
) -> None:
    made = await client.conversations.create()
    tools: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    world.engine.answer = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    first = await client.responses.create(
        model=MODEL, input="look", conversation=made.id, tools=tools
    )
    world.engine.answer = "seen"
    call: Any = first.output[0]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    await client.responses.create(model=MODEL, input=[result], conversation=made.id, tools=tools)
    assert "42" in prompt(world)
    listed = [one.type async for one in client.conversations.items.list(made.id, order="asc")]
    assert listed == ["message", "function_call", "function_call_output", "message"]


async def test_an_end_user_keeps_the_conversation(client: AsyncOpenAI, world: World) -> None:
    made = await client.conversations.create()
    keys = []
    for named in ({"safety_identifier": "ann"}, {}, {"safety_identifier": "bob"}, {}):
        await client.responses.create(model=MODEL, input="x", conversation=made.id, **named)  # type: ignore[call-overload]
        keys.append(world.engine.requests[-1].namespaces.private_key)
    ann, bob = (world.tenants["acme"].user_key(name) for name in ("ann", "bob"))
    assert keys == [ann, ann, bob, bob]


async def test_items_that_are_named_are_said_and_kept_once(
    client: AsyncOpenAI, world: World
) -> None:
    other = await client.responses.create(model=MODEL, input="zero")
    mine: Any = user("mine") | {"id": "msg/mine"}
    made = await client.conversations.create(items=[mine])
    names: Any = [
        {"type": "item_reference", "id": other.output[0].id},
        {"id": "msg/mine"},
        user("one"),
    ]
    asked = await client.responses.create(model=MODEL, input=names, conversation=made.id)
    assert prompt(world).count("mine") == 1
    said = ["mine", "You said: zero", "one", "You said: one"]
    assert await texts(client, made.id) == said
    given = [one async for one in client.responses.input_items.list(asked.id, order="asc")]
    assert [one.id for one in given[:2]] == [other.output[0].id, "msg/mine"]
    again: Any = [{"type": "item_reference", "id": other.output[0].id}, user("two")]
    await client.responses.create(model=MODEL, input=again, conversation=made.id)
    assert prompt(world).count("You said: zero") == 1
    assert await texts(client, made.id) == [*said, "two", "You said: two"]


async def test_nobody_names_what_is_not_there(client: AsyncOpenAI, world: World) -> None:
    theirs = await world.client("umbra").responses.create(model=MODEL, input="secret")
    made = await client.conversations.create(items=[user("zero")])
    for name in ("msg_1", theirs.output[0].id):
        names: Any = [user("x"), {"type": "item_reference", "id": name}]
        with pytest.raises(NotFoundError) as refused:
            await client.responses.create(model=MODEL, input=names, conversation=made.id)
        assert (refused.value.code, refused.value.param) == ("item_not_found", "input[1].id")
    assert await texts(client, made.id) == ["zero"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "conversation"),
        ({"conversation": {"id": ""}}, "conversation.id"),
        ({"conversation": 7}, "conversation"),
    ],
)
async def test_what_does_not_go_with_a_conversation_is_refused(
    client: AsyncOpenAI, fields: Any, param: str
) -> None:
    made = await client.conversations.create()
    body: Any = {"input": "x", "conversation": made.id} | fields
    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model=MODEL, **body)
    assert refused.value.param == param
    assert await texts(client, made.id) == []


async def test_one_response_at_a_time_runs_in_a_conversation(
    client: AsyncOpenAI, world: World
) -> None:
    made = await client.conversations.create()
    world.engine.hold_after = 2
    first = asyncio.create_task(
        client.responses.create(model=MODEL, input="one", conversation=made.id)
    )
    await eventually(lambda: bool(world.engine.holding))
    with pytest.raises(ConflictError) as refused:
        await client.responses.create(model=MODEL, input="two", conversation=made.id)
    assert refused.value.code == "conversation_locked"
    assert "retry-after" in refused.value.response.headers
    await client.conversations.items.create(made.id, items=[user("meanwhile")])
    world.engine.release()
    await first
    # The client tries again by itself.
    patient = client.with_options(max_retries=2)
    await patient.responses.create(model=MODEL, input="two", conversation=made.id)
    said = ["meanwhile", "one", "You said: one", "two", "You said: two"]
    assert await texts(client, made.id) == said


async def test_what_was_cancelled_is_not_said(client: AsyncOpenAI, world: World) -> None:
    made = await client.conversations.create()
    world.engine.hold_after = 2
    running = await client.responses.create(
        model=MODEL, input="one", conversation=made.id, background=True
    )
    await eventually(lambda: bool(world.engine.holding))
    await client.responses.cancel(running.id)
    world.engine.release()
    short = await client.responses.create(
        model=MODEL, input="two", conversation=made.id, max_output_tokens=3
    )
    assert short.status == "incomplete"
    assert await texts(client, made.id) == ["two", "You"]


async def test_a_refused_request_leaves_the_conversation_free(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    with pytest.raises(BadRequestError):
        await client.responses.create(model=MODEL, input="x" * 9000, conversation=made.id)
    await client.responses.create(model=MODEL, input="x", conversation=made.id)


async def test_a_conversation_deleted_meanwhile_stays_so(client: AsyncOpenAI, world: World) -> None:
    made = await client.conversations.create()
    world.engine.hold_after = 2
    stream = await client.responses.create(
        model=MODEL, input="one", conversation=made.id, stream=True
    )
    await eventually(lambda: bool(world.engine.holding))
    await client.conversations.delete(made.id)
    world.engine.release()
    assert [event async for event in stream][-1].type == "response.completed"
    assert not await world.redis.execute("EXISTS", f"pw:{{acme}}:conversation:{made.id}")


async def test_a_response_that_goes_on_after_a_restart_is_said_once(
    client: AsyncOpenAI, world: World
) -> None:
    made = await client.conversations.create()
    world.engine.hold_after = 4
    stream = await client.responses.create(
        model=MODEL, input="one", conversation=made.id, stream=True
    )
    await eventually(lambda: bool(world.engine.holding))
    responses = world.app.state.service.responses
    await responses.suspend()
    [created, *_] = [event async for event in stream]
    assert await texts(client, made.id) == []
    world.engine.release()
    await responses.close()
    rest = await client.responses.retrieve(created.response.id, stream=True)  # type: ignore[union-attr]
    assert [event async for event in rest][-1].type == "response.completed"
    assert await texts(client, made.id) == ["one", "You said: one"]


async def test_a_store_outage_keeps_what_is_said(client: AsyncOpenAI, world: World) -> None:
    made = await client.conversations.create(items=[user("zero")])
    with world.outage():
        await client.responses.create(model=MODEL, input="one", conversation=made.id)
        await client.responses.create(model=MODEL, input="two", conversation=made.id)
        assert "You said: one" in prompt(world)
    late = world.app.state.service.late_writes
    await eventually(lambda: len(late) == 0)
    said = ["zero", "one", "You said: one", "two", "You said: two"]
    assert await texts(client, made.id) == said


async def test_nobody_goes_on_from_what_another_process_has_changed(
    client: AsyncOpenAI, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await client.conversations.create()
    elsewhere = ConversationStore(world.stores.conversations, LateWrites(), 60)
    item = b'{"id":"msg_1","type":"message","role":"user","content":"zero"}'
    await elsewhere.append(world.tenants["acme"], made.id, [("msg_1", item)], None)
    known = world.app.state.service.conversations._known
    await eventually(lambda: not known)

    async def down(*_: object) -> None:
        raise StoreUnavailable("down")

    with monkeypatch.context() as outage:
        outage.setattr(world.stores.conversations, "load", down)
        with pytest.raises(InternalServerError) as refused:
            await client.responses.create(model=MODEL, input="one", conversation=made.id)
    assert refused.value.code == "store_unavailable"
    await client.responses.create(model=MODEL, input="one", conversation=made.id)
    assert "zero" in prompt(world)
