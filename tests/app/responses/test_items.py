"""Items that are found again: listed, named by later requests, deleted with their responses."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from app.responses import items
from app.responses.store import ResponseStore
from app.routes import responses as routes
from app.transport.bounds import Bounds
from app.wire import common
from app.wire.common import parse
from tests.app.conftest import MODEL, World, eventually
from tests.app.responses.test_responses_ws import socket, text_of


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        yield http


@pytest.fixture
def client(world: World) -> AsyncOpenAI:
    return world.client()


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_input_is_listed_as_it_was_given(client: AsyncOpenAI) -> None:
    said: Any = [user("one"), {"role": "assistant", "content": "two", "id": "msg_mine"}]
    said += [{"role": "user", "content": [{"type": "input_text", "text": "three"}]}]
    response = await client.responses.create(model=MODEL, input=said)
    items = [one async for one in client.responses.input_items.list(response.id, order="asc")]
    assert [one.content[0].text for one in items] == ["one", "two", "three"]
    assert [one.content[0].type for one in items] == ["input_text", "output_text", "input_text"]
    assert items[1].id == "msg_mine"
    assert len({one.id for one in items}) == 3
    newest = await client.responses.input_items.list(response.id, limit=1)
    assert (newest.data[0].content[0].text, newest.has_more) == ("three", True)
    following = await client.responses.input_items.list(response.id, after=newest.data[0].id)
    assert [one.content[0].text for one in following.data] == ["two", "one"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"limit": "\u0664"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_x"}, "after"),
        ({"include": "colour"}, "include"),
        ({"colour": "1"}, "colour"),
    ],
)
async def test_a_list_cannot_be_asked_for_anything(
    http: httpx.AsyncClient, query: dict[str, str], param: str
) -> None:
    body = (await http.post("/v1/responses", json={"input": "x"})).json()
    path = f"/v1/responses/{body['id']}/input_items"
    refused = await http.get(path, params=query)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_retrieval_may_name_what_it_includes(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        model=MODEL, input="hello", include=["message.output_text.logprobs"]
    )
    include: Any = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    found = await client.responses.retrieve(response.id, include=include)
    assert found.output == response.output


async def test_references_stand_for_items_of_earlier_responses(
    client: AsyncOpenAI, world: World
) -> None:
    first = await client.responses.create(model=MODEL, input=[user("one")])
    [given] = (await client.responses.input_items.list(first.id)).data
    named: Any = [{"type": "item_reference", "id": given.id}, {"id": first.output[0].id}]
    second = await client.responses.create(model=MODEL, input=[*named, user("two")])
    with_names = prompt(world)
    whole: Any = [user("one"), {"role": "assistant", "content": "You said: one"}, user("two")]
    await client.responses.create(model=MODEL, input=whole)
    assert with_names == prompt(world)
    listed = (await client.responses.input_items.list(second.id, order="asc")).data
    assert [one.id for one in listed][:2] == [given.id, first.output[0].id]


async def test_nobody_names_anothers_items(client: AsyncOpenAI, world: World) -> None:
    first = await client.responses.create(model=MODEL, input="one")
    named: Any = [{"type": "item_reference", "id": first.output[0].id}]
    await client.responses.create(model=MODEL, input=named)
    with pytest.raises(NotFoundError) as refused:
        await world.client("umbra").responses.create(model=MODEL, input=named)
    assert refused.value.code == "item_not_found"
    with pytest.raises(NotFoundError):
        await world.client("umbra").responses.input_items.list(first.id)


async def test_references_lie_in_so_many_responses(http: httpx.AsyncClient) -> None:
    ids = []
    for _ in range(65):
        body = (
            await http.post("/v1/responses", json={"input": "x", "max_output_tokens": 1})
        ).json()
        ids.append(body["output"][0]["id"])
    named = [{"type": "item_reference", "id": one} for one in ids]
    assert (await http.post("/v1/responses", json={"input": named[:64] * 2})).status_code == 200
    refused = (await http.post("/v1/responses", json={"input": named})).json()["error"]
    assert refused["param"] == "input[64].id"


async def test_an_item_is_read_once_however_often_it_is_named(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(*arguments: Any, **named: Any) -> Any:
        read.append(threading.get_ident())
        return parse(*arguments, **named)

    said = {"role": "user", "content": [{"type": "input_text", "text": ""}] * 4095}
    said["content"] += [{"type": "input_text", "text": "x"}]  # type: ignore[operator]
    body = (await http.post("/v1/responses", json={"input": [said]})).json()
    item = (await http.get(f"/v1/responses/{body['id']}/input_items")).json()["data"][0]
    monkeypatch.setattr(items, "parse", counted)
    named = [{"type": "item_reference", "id": item["id"]}] * 50
    assert (await http.post("/v1/responses", json={"input": named})).status_code == 200
    assert len(read) == 1
    assert read != [threading.get_ident()], "the event loop does not wait for it"


@pytest.mark.parametrize("limits", [Bounds(max_body_bytes=1000)])
async def test_references_bring_no_more_than_a_body(http: httpx.AsyncClient) -> None:
    body = (await http.post("/v1/responses", json={"input": "x" * 400})).json()
    item = (await http.get(f"/v1/responses/{body['id']}/input_items")).json()["data"][0]
    named = [{"id": item["id"]}] * 3
    for truncation in ("disabled", "auto"):
        asked = {"input": named[:2], "truncation": truncation}
        assert (await http.post("/v1/responses", json=asked)).status_code == 200
        refused = await http.post("/v1/responses", json=asked | {"input": named})
        assert refused.json()["error"]["param"] == "input[2].id"


async def test_the_event_loop_goes_through_no_long_input(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[int]] = {}

    def spied(where: Any, name: str) -> None:
        real, threads = getattr(where, name), seen.setdefault(name, set())

        def spy(*arguments: Any) -> Any:
            threads.add(threading.get_ident())
            return real(*arguments)

        monkeypatch.setattr(where, name, spy)

    spied(common, "_ignored")
    spied(items, "_listed")
    spied(routes, "page")
    said = [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 500}]
    body = (await http.post("/v1/responses", json={"input": said})).json()
    listed = await http.get(f"/v1/responses/{body['id']}/input_items")
    assert len(listed.json()["data"][0]["content"]) == 500
    async with socket(world) as ws:
        await ws.create(said)
        assert (await ws.turn())[-1]["type"] == "response.completed"
    for name, threads in seen.items():
        assert threads, name
        assert threading.get_ident() not in threads, name


async def test_an_unstored_item_is_known_to_its_socket_alone(
    world: World, client: AsyncOpenAI
) -> None:
    async with socket(world) as ws:
        await ws.create("one", store=False)
        events = await ws.turn()
        item = events[-1]["response"]["output"][0]
        named = [{"type": "item_reference", "id": item["id"]}, user("two")]
        await ws.create(named, store=False)
        assert text_of(await ws.turn()) == "You said: two"
        with pytest.raises(NotFoundError):
            await client.responses.create(model=MODEL, input=named)  # type: ignore[arg-type]


async def test_a_deleted_response_is_gone(client: AsyncOpenAI, world: World) -> None:
    response = await client.responses.create(model=MODEL, input="hello")
    with pytest.raises(NotFoundError):
        await world.client("umbra").responses.delete(response.id)
    await client.responses.retrieve(response.id)
    await client.responses.delete(response.id)
    for gone in (
        client.responses.retrieve(response.id),
        client.responses.input_items.list(response.id),
        client.responses.delete(response.id),
    ):
        with pytest.raises(NotFoundError):
            await gone
    named: Any = [{"type": "item_reference", "id": response.output[0].id}]
    with pytest.raises(NotFoundError):
        await client.responses.create(model=MODEL, input=named)


async def test_a_running_response_ends_when_it_is_deleted(
    http: httpx.AsyncClient, world: World
) -> None:
    world.engine.hold_after = 3
    body = (await http.post("/v1/responses", json={"input": "x", "background": True})).json()
    await eventually(lambda: bool(world.engine.holding))
    listed = await http.get(f"/v1/responses/{body['id']}/input_items")
    assert listed.json()["data"][0]["content"][0]["text"] == "x"
    deleted = (await http.delete(f"/v1/responses/{body['id']}")).json()
    assert deleted == {"id": body["id"], "object": "response", "deleted": True}
    assert not world.engine.active
    assert (await http.get(f"/v1/responses/{body['id']}")).status_code == 404


async def test_a_running_response_that_is_not_stored_has_no_list_and_can_be_deleted(
    http: httpx.AsyncClient, world: World
) -> None:
    world.engine.hold_after = 3
    asked = {"input": "x", "stream": True, "store": False}
    async with http.stream("POST", "/v1/responses", json=asked):
        await eventually(lambda: bool(world.engine.holding))
        path = f"/v1/responses/{world.engine.requests[-1].request_id}"
        assert (await http.get(f"{path}/input_items")).status_code == 404
        assert (await http.delete(path)).json()["deleted"]
        assert not world.engine.active
        assert (await http.delete(path)).status_code == 404


async def test_a_response_that_ends_while_it_is_deleted_is_deleted(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (await http.post("/v1/responses", json={"input": "x"})).json()

    async def was_running(*_: object) -> bool:
        return True

    monkeypatch.setattr(ResponseStore, "runs_elsewhere", was_running)
    assert (await http.delete(f"/v1/responses/{body['id']}")).json()["deleted"]
    assert (await http.get(f"/v1/responses/{body['id']}")).status_code == 404


async def test_a_background_response_needs_no_reader(http: httpx.AsyncClient, world: World) -> None:
    world.engine.hold_after = 3
    answer = await http.post("/v1/responses", json={"input": "x", "background": True})
    body = answer.json()
    assert (body["status"], body["background"], body["output"]) == ("in_progress", True, [])
    assert "x-request-id" in answer.headers
    world.engine.release()
    run = world.app.state.service.responses._runs["acme", body["id"]]
    await run.settled()
    found = (await http.get(f"/v1/responses/{body['id']}")).json()
    assert found["status"] == "completed"
    assert found["output"][0]["content"][0]["text"] == "You said: x"
    assert (await http.get(f"/v1/responses/{body['id']}?stream=true")).text.endswith("[DONE]\n\n")


async def test_what_was_thought_is_not_said_again(client: AsyncOpenAI, world: World) -> None:
    thought: Any = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "secret"}],
    }
    said: Any = [user("one"), thought, {"role": "assistant", "content": "two"}, user("three")]
    response = await client.responses.create(model=MODEL, input=said)
    with_thought = prompt(world)
    said.remove(thought)
    await client.responses.create(model=MODEL, input=said)
    assert with_thought == prompt(world)
    listed = (await client.responses.input_items.list(response.id, order="asc")).data
    assert listed[1].type == "reasoning"
    for before in (None, response.id):
        with pytest.raises(BadRequestError) as refused:
            await client.responses.create(model=MODEL, input=[thought], previous_response_id=before)
        assert refused.value.param == "input"


async def test_how_much_to_reason_may_be_asked_for(client: AsyncOpenAI) -> None:
    for effort in ("none", "high", None):
        reasoning: Any = {"effort": effort, "summary": None}
        await client.responses.create(model=MODEL, input="x", reasoning=reasoning)
        await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            reasoning_effort=effort,  # type: ignore[arg-type]
        )
    unknown: Any = {"effort": "some"}
    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(model=MODEL, input="x", reasoning=unknown)
    assert refused.value.param == "reasoning.effort"
