"""`GET /v1/prompts`: what a request may name, and nothing of what others may."""

from __future__ import annotations

import httpx
import pytest

from tests.app.conftest import World


async def listed(world: World, tenant: str = "acme", **query: str | int) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.base_url) as client:
        return await client.get("/v1/prompts", params=query, headers=world.headers(tenant))


@pytest.fixture
async def group(world: World, admin: httpx.AsyncClient) -> None:
    await admin.post("/groups", json={"id": "law"})
    await admin.patch("/tenants/acme", json={"share_group": "law"})


@pytest.mark.usefixtures("group")
async def test_a_tenants_own_prompts_hide_those_of_its_group(world: World) -> None:
    await world.prompts.put("@law", "desk", "Of the group, for {{who}}.")
    await world.prompts.put("@law", "court", "In court, {{who}} and {{whom}}; {{who}}.")
    await world.prompts.put("acme", "desk", "At the desk.")
    await world.prompts.put("acme", "desk", "At the other desk.")
    await world.prompts.put("umbra", "secret", "Of somebody else.")
    answer = await listed(world)
    assert "desk." not in answer.text
    assert answer.json() == {
        "object": "list",
        "data": [
            {"id": "court", "object": "prompt", "version": "1", "variables": ["who", "whom"]},
            {"id": "desk", "object": "prompt", "version": "2", "variables": []},
        ],
        "first_id": "court",
        "last_id": "desk",
        "has_more": False,
    }
    for one in answer.json()["data"]:
        values = dict.fromkeys(one["variables"], "us")
        reference = {"id": one["id"], "version": one["version"], "variables": values}
        async with httpx.AsyncClient(base_url=world.base_url) as client:
            body = {"input": "hi", "prompt": reference, "max_output_tokens": 1}
            chat = await client.post("/v1/responses", json=body, headers=world.headers())
        assert chat.is_success, chat.text


@pytest.mark.usefixtures("group")
async def test_prompts_are_listed_in_pages(world: World) -> None:
    names = [f"prompt-{number}" for number in range(5)]
    for number, name in enumerate(names):
        await world.prompts.put(("acme", "@law")[number % 2], name, "A text.")
    seen, query = [], {"limit": 2}
    while True:
        document = (await listed(world, **query)).json()
        seen += [one["id"] for one in document["data"]]
        if not document["has_more"]:
            break
        query["after"] = document["last_id"]
    assert seen == names
    assert (await listed(world, "umbra")).json()["first_id"] is None


@pytest.mark.parametrize(("name", "value"), [("order", "desc"), ("limit", 0), ("owner", "umbra")])
async def test_what_cannot_be_asked_is_named(world: World, name: str, value: str | int) -> None:
    answer = await listed(world, **{name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


async def test_without_a_key_or_a_store_nothing_is_listed(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.base_url) as client:
        assert (await client.get("/v1/prompts")).status_code == 401
    await listed(world)  # the key is known from now on
    with world.outage():
        assert (await listed(world)).status_code == 503
