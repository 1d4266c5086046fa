"""Chat completions with `store: true`: found again, listed, changed and deleted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, NotFoundError

from app.chat import stored
from tenants.errors import StoreUnavailable
from tests.app.conftest import MODEL, World, eventually


@pytest.fixture
def client(world: World) -> AsyncOpenAI:
    return world.client()


async def ask(client: AsyncOpenAI, text: str = "hello", **fields: Any) -> Any:
    fields = {"store": True} | fields
    messages: Any = [{"role": "user", "content": text}]
    return await client.chat.completions.create(model=MODEL, messages=messages, **fields)


async def whole(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


async def test_a_stored_completion_is_found_changed_and_deleted(client: AsyncOpenAI) -> None:
    made = await ask(client, metadata={"topic": "demo"}, logprobs=True, top_logprobs=1)
    found = await client.chat.completions.retrieve(made.id)
    assert found.metadata == {"topic": "demo"}
    assert (found.choices, found.usage) == (made.choices, made.usage)
    changed = await client.chat.completions.update(made.id, metadata={"topic": "other"})
    assert changed == found.model_copy(update={"metadata": {"topic": "other"}})
    assert await client.chat.completions.retrieve(made.id) == changed
    assert (await client.chat.completions.delete(made.id)).deleted
    for gone in (
        client.chat.completions.retrieve(made.id),
        client.chat.completions.update(made.id, metadata={}),
        client.chat.completions.delete(made.id),
        client.chat.completions.messages.list(made.id),
    ):
        with pytest.raises(NotFoundError) as refused:
            await gone
        assert refused.value.code == "completion_not_found"


async def test_a_streamed_completion_is_stored_whole(client: AsyncOpenAI) -> None:
    stream = await ask(client, stream=True, logprobs=True, n=2)
    chunks = [chunk async for chunk in stream]
    found = await client.chat.completions.retrieve(chunks[0].id)
    assert [one.message.content for one in found.choices] == ["You said: hello"] * 2
    assert found.choices[1].logprobs is not None
    assert len(found.choices[1].logprobs.content or []) == len("You said: hello")


async def test_messages_are_listed_as_they_were_given(client: AsyncOpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said: Any = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "!"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": "c1"},
    ]
    made = await client.chat.completions.create(model=MODEL, messages=said, store=True)
    listed = client.chat.completions.messages.list(made.id, limit=3)
    messages: list[Any] = [one async for one in listed]
    assert [one.role for one in messages] == ["system", "user", "assistant", "tool"]
    assert [one.content for one in messages] == ["Be brief.", "one!", None, "seen"]
    assert [part.text for part in messages[1].content_parts] == ["one", "!"]
    assert messages[2].tool_calls[0].function.name == "look"
    assert len({one.id for one in messages}) == 4
    newest = await client.chat.completions.messages.list(made.id, order="desc", limit=1)
    assert newest.data[0].content == "seen"


async def test_lists_come_in_pages_and_are_filtered(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_READ_AT_ONCE", 3)
    ids = []
    for number in range(7):
        metadata = {"parity": "odd" if number % 2 else "even", "number": str(number)}
        ids.append((await ask(client, metadata=metadata, max_completion_tokens=1)).id)
    completions = client.chat.completions
    assert [one.id async for one in completions.list(limit=2)] == ids
    assert [one.id async for one in completions.list(limit=3, order="desc")] == ids[::-1]
    odd = completions.list(metadata={"parity": "odd"}, limit=1)
    assert [one.id async for one in odd] == ids[1::2]
    both = {"parity": "even", "number": "4"}
    assert [one.id async for one in completions.list(metadata=both)] == [ids[4]]
    assert [one.id async for one in completions.list(model=MODEL)] == ids
    assert [one.id async for one in completions.list(model="other")] == []
    await completions.update(ids[0], metadata={"parity": "odd"})
    await completions.delete(ids[3])
    left = completions.list(metadata={"parity": "odd"})
    assert [one.id async for one in left] == [ids[0], ids[1], ids[5]]
    with pytest.raises(BadRequestError) as refused:
        await completions.list(after=ids[3])
    assert refused.value.param == "after"


async def test_a_page_has_so_many_bytes(
    client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_PAGE_BYTES", 1)
    ids = [(await ask(client)).id for _ in range(3)]
    first = await client.chat.completions.list()
    assert ([one.id for one in first.data], first.has_more) == (ids[:1], True)
    assert [one.id async for one in client.chat.completions.list()] == ids


async def test_another_tenant_finds_nothing(client: AsyncOpenAI, world: World) -> None:
    made = await ask(client)
    stranger = world.client("umbra").chat.completions
    assert [one async for one in stranger.list()] == []
    for refused in (stranger.retrieve(made.id), stranger.delete(made.id)):
        with pytest.raises(NotFoundError):
            await refused
    with pytest.raises(BadRequestError):
        await stranger.list(after=made.id)


async def test_what_nobody_asked_to_store_or_cannot_have_is_not(
    client: AsyncOpenAI, world: World
) -> None:
    for store in (None, False):
        made = await ask(client, store=store)
        with pytest.raises(NotFoundError):
            await client.chat.completions.retrieve(made.id)
    with pytest.raises(BadRequestError) as refused:
        await ask(client, store=False, metadata={"topic": "demo"})
    assert refused.value.param == "metadata"
    world.engine.die_after = 3
    for stream in (True, False):
        with pytest.raises(APIError):
            await whole(await ask(client, stream=stream))
    assert [one async for one in client.chat.completions.list()] == []


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("colour=red", "colour"), ("metadata=1", "metadata")]
)
async def test_a_list_cannot_be_asked_for_anything(world: World, query: str, param: str) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        refused = await http.get(f"/v1/chat/completions?{query}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_older_ones_make_room_and_leave_the_list(client: AsyncOpenAI, world: World) -> None:
    await world.limit("acme", stored_bytes=4000)
    ids = [(await ask(client)).id for _ in range(6)]
    listed = [one.id async for one in client.chat.completions.list()]
    assert 0 < len(listed) < 6
    assert listed == ids[-len(listed) :]
    assert await world.redis.execute("ZCARD", "pw:{acme}:listed") == len(listed)


async def test_metadata_for_which_there_is_no_room_changes_nothing(
    client: AsyncOpenAI, world: World
) -> None:
    made = await ask(client)
    conversation = await client.conversations.create()
    await world.limit("acme", stored_bytes=4000)
    huge = {str(index): "x" * 500 for index in range(16)}
    for refused in (
        client.chat.completions.update(made.id, metadata=huge),
        client.conversations.update(conversation.id, metadata=huge),
    ):
        with pytest.raises(BadRequestError) as error:
            await refused
        assert error.value.param == "metadata"
    assert (await client.chat.completions.retrieve(made.id)).metadata == {}


async def test_an_outage_delays_what_is_stored(
    client: AsyncOpenAI, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object) -> None:
        raise StoreUnavailable("down")

    late = world.app.state.service.late_writes
    with monkeypatch.context() as outage:
        outage.setattr(world.stores.completions, "put", down)
        made = await ask(client)
        assert len(late) == 1
    await eventually(lambda: len(late) == 0)
    assert (await client.chat.completions.retrieve(made.id)).choices == made.choices
