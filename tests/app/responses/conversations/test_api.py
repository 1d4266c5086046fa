"""`/v1/conversations`, as the official client uses it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, RateLimitError

from app.transport.bounds import Bounds
from tests.app.conftest import World, eventually


@pytest.fixture
def client(world: World) -> AsyncOpenAI:
    return world.client()


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def texts(client: AsyncOpenAI, conversation_id: str) -> list[str]:
    listed = client.conversations.items.list(conversation_id, order="asc")
    return [one.content[0].text async for one in listed]  # type: ignore[union-attr]


async def test_a_conversation_is_made_changed_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(metadata={"topic": "demo"})
    assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"topic": "other"})
    assert (changed.id, changed.created_at) == (made.id, made.created_at)
    assert (await client.conversations.retrieve(made.id)).metadata == {"topic": "other"}
    assert (await client.conversations.update(made.id, metadata=None)).metadata == {}
    assert (await client.conversations.delete(made.id)).deleted
    for gone in (
        client.conversations.retrieve(made.id),
        client.conversations.update(made.id, metadata={}),
        client.conversations.delete(made.id),
        client.conversations.items.create(made.id, items=[user("x")]),
        client.conversations.items.delete("msg_x", conversation_id=made.id),
    ):
        with pytest.raises(NotFoundError) as refused:
            await gone
        assert refused.value.code == "conversation_not_found"


async def test_items_are_added_listed_and_deleted(client: AsyncOpenAI) -> None:
    mine = "msg/mine"
    said: Any = [user("zero"), {"role": "assistant", "content": "one", "id": mine}]
    made = await client.conversations.create(items=said)
    added = await client.conversations.items.create(made.id, items=[user("two")])
    assert (added.has_more, added.first_id) == (False, added.data[0].id)
    assert await texts(client, made.id) == ["zero", "one", "two"]
    found: Any = await client.conversations.items.retrieve(mine, conversation_id=made.id)
    assert (found.role, found.content[0].type) == ("assistant", "output_text")
    left = await client.conversations.items.delete(mine, conversation_id=made.id)
    assert left.id == made.id
    assert await texts(client, made.id) == ["zero", "two"]
    for gone in (
        client.conversations.items.retrieve(mine, conversation_id=made.id),
        client.conversations.items.delete(mine, conversation_id=made.id),
    ):
        with pytest.raises(NotFoundError) as refused:
            await gone
        assert refused.value.code == "item_not_found"


async def test_a_long_list_comes_in_pages(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    for first in range(0, 45, 15):
        numbered = [user(str(number)) for number in range(first, first + 15)]
        await client.conversations.items.create(made.id, items=numbered)
    page = await client.conversations.items.list(made.id)
    assert (len(page.data), page.has_more, page.last_id) == (20, True, page.data[-1].id)
    newest_first = [one async for one in client.conversations.items.list(made.id, limit=7)]
    assert [int(one.content[0].text) for one in newest_first] == list(range(44, -1, -1))  # type: ignore[union-attr]


async def test_calls_results_and_thoughts_are_items(client: AsyncOpenAI) -> None:
    said: Any = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ]
    made = await client.conversations.create(items=said)
    listed = [one async for one in client.conversations.items.list(made.id, order="asc")]
    assert [one.type for one in listed] == [one["type"] for one in said]


CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (RESULT, "items[1].call_id"),
        ({"type": "compaction", "encrypted_content": "x"}, "items[1].encrypted_content"),
        ({"type": "reasoning", "encrypted_content": "x"}, "items[1].encrypted_content"),
    ],
)
async def test_what_no_response_could_go_on_from_is_refused_at_once(
    client: AsyncOpenAI, bad: Any, param: str
) -> None:
    made = await client.conversations.create(items=[user("zero")])
    items: Any = [user("one"), bad]
    for refusing in (
        client.conversations.create(items=items),
        client.conversations.items.create(made.id, items=items),
    ):
        with pytest.raises(BadRequestError) as refused:
            await refusing
        assert refused.value.param == param
    assert await texts(client, made.id) == ["zero"]


async def test_a_call_has_one_result(client: AsyncOpenAI) -> None:
    call, result = CALL | {"id": "fc_1"}, RESULT | {"id": "fco_1"}
    made = await client.conversations.create(items=[call])  # type: ignore[list-item]
    for _ in range(2):  # the same one may be sent again
        await client.conversations.items.create(made.id, items=[result])  # type: ignore[list-item]
    with pytest.raises(BadRequestError) as refused:
        await client.conversations.items.create(made.id, items=[RESULT])  # type: ignore[list-item]
    assert refused.value.param == "items[0].call_id"
    await client.conversations.items.delete("fc_1", conversation_id=made.id)
    await client.conversations.items.create(made.id, items=[user("x")])
    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model="Scripted-1", input="y", conversation=made.id)
    assert refused.value.param == "conversation"


async def test_another_item_under_an_id_that_is_taken_has_a_new_one(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("one") | {"id": "msg_1"}])
    twice = [user("two") | {"id": "msg_1"}, user("one") | {"id": "msg_1"}]
    added = await client.conversations.items.create(made.id, items=twice)
    assert [one.id != "msg_1" for one in added.data] == [True]
    assert await texts(client, made.id) == ["one", "two"]


async def test_another_tenant_finds_nothing(world: World, client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("secret")])
    stranger = world.client("umbra")
    for refused in (
        stranger.conversations.retrieve(made.id),
        stranger.conversations.delete(made.id),
        stranger.conversations.items.create(made.id, items=[user("x")]),
        stranger.responses.create(model="Scripted-1", input="x", conversation=made.id),
    ):
        with pytest.raises(NotFoundError):
            await refused
    assert await texts(client, made.id) == ["secret"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [user("x")] * 21}, "items"),
        ("", {"metadata": {f"k{number}": "v" for number in range(17)}}, "metadata"),
        ("", {"metadata": {"k" * 65: "v"}}, "metadata"),
        ("", {"metadata": {"k": "v" * 513}}, "metadata"),
        ("", {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0]"),
        ("", {"colour": "red"}, "colour"),
        ("/conv_x", {}, "metadata"),
        ("/conv_x/items", {}, "items"),
        ("/conv_x/items", {"items": []}, "items"),
        ("/conv_x/items?limit=1", {"items": [user("x")]}, "limit"),
    ],
)
async def test_bodies_are_refused_by_name(
    world: World, path: str, body: dict[str, Any], param: str
) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        refused = await http.post(f"/v1/conversations{path}", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("limits", [Bounds(max_body_bytes=1000)])
async def test_a_conversation_holds_as_much_as_a_body(client: AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[user("x" * 500)])
    with pytest.raises(BadRequestError) as refused:
        await client.conversations.items.create(made.id, items=[user("x" * 400)])
    assert refused.value.param == "items"
    await client.conversations.items.create(made.id, items=[user("y")])
    response = await client.responses.create(
        model="Scripted-1", input="z" * 300, conversation=made.id
    )
    assert response.output_text.endswith("z")
    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model="Scripted-1", input="z", conversation=made.id)
    assert refused.value.param == "conversation"


async def test_a_tenant_that_keeps_nothing_has_no_conversations(
    world: World, client: AsyncOpenAI
) -> None:
    await world.limit("acme", stored_bytes=0)
    with pytest.raises(BadRequestError):
        await client.conversations.create()


async def test_changes_count_as_requests(world: World, client: AsyncOpenAI) -> None:
    await world.limit("acme", requests_per_minute=2)
    made = await client.conversations.create(items=[user("x") | {"id": "msg_1"}])
    await client.conversations.items.delete("msg_1", conversation_id=made.id)
    for refused in (
        client.conversations.create(),
        client.conversations.update(made.id, metadata={}),
        client.conversations.items.create(made.id, items=[user("x")]),
        client.conversations.items.delete("msg_1", conversation_id=made.id),
        client.chat.completions.list(),
    ):
        with pytest.raises(RateLimitError):
            await refused
    assert (await client.conversations.retrieve(made.id)).id == made.id


async def test_a_deleted_tenants_conversations_go_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client()
    await client.conversations.create(items=[user("x")])
    monkeypatch.setattr(world.stores.tenants, "_flush_grace_seconds", 0)
    await world.stores.tenants.delete_tenant("acme")
    assert not await world.redis.execute("KEYS", "pw:{acme}:*")
    known = world.app.state.service.conversations._known
    await eventually(lambda: not known)
