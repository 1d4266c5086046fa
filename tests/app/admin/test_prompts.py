"""System prompts and share groups over HTTP: versions, warming, pins, members."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.app.admin.problem import fields, problem
from tests.app.conftest import World, eventually

TEXT = "You are the support desk of a bakery. Be brief. " * 2


@pytest.fixture(params=["/tenants/acme", "/groups/law"])
async def owner(request: pytest.FixtureRequest, admin: httpx.AsyncClient) -> str:
    """Whose prompts: all that holds for a tenant's holds for a group's."""
    await admin.post("/groups", json={"id": "law"})
    return str(request.param)


async def put(admin: httpx.AsyncClient, owner: str, text: str, **more: Any) -> dict[str, Any]:
    answer = await admin.put(f"{owner}/prompts/desk", json={"text": text, **more})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def test_a_prompt_is_registered_shown_and_deleted(
    admin: httpx.AsyncClient, owner: str
) -> None:
    url = f"{owner}/prompts/desk"
    assert (await put(admin, owner, TEXT))["version"] == 1
    shown = (await admin.get(url)).json()
    assert (shown["text"], shown["active"], shown["characters"]) == (TEXT, True, len(TEXT))
    listed = (await admin.get(f"{owner}/prompts")).json()
    assert [one["name"] for one in listed["prompts"]] == ["desk"]
    assert (await admin.delete(url)).status_code == 204
    problem(await admin.get(url), 404)
    assert (await admin.get(f"{owner}/prompts")).json() == {"prompts": [], "next": None}


async def test_the_active_version_is_the_operators_choice(
    admin: httpx.AsyncClient, owner: str
) -> None:
    url = f"{owner}/prompts/desk"
    await put(admin, owner, "first")
    await put(admin, owner, "second")
    assert (await admin.get(url)).json()["text"] == "second"
    third = await put(admin, owner, "third", activate=False)
    assert (third["version"], third["active"]) == (3, False)
    assert (await admin.get(url)).json()["text"] == "second"
    await admin.post(f"{url}/activate", json={"version": 1})
    assert (await admin.get(url)).json()["text"] == "first"
    assert (await admin.get(url, params={"version": 3})).json()["text"] == "third"
    problem(await admin.post(f"{url}/activate", json={"version": 4}), 404)


async def test_a_prompt_says_which_adapter_is_meant(admin: httpx.AsyncClient, owner: str) -> None:
    assert (await put(admin, owner, TEXT))["adapter"] is None
    assert (await put(admin, owner, TEXT, adapter="rhyme"))["version"] == 2
    assert (await admin.get(f"{owner}/prompts/desk")).json()["adapter"] == "rhyme"


async def test_versions_are_listed_newest_first_page_by_page(
    admin: httpx.AsyncClient, owner: str
) -> None:
    for number in range(5):
        await put(admin, owner, f"text {number}")
    url = f"{owner}/prompts/desk/versions"
    found, after = [], {}
    for _ in range(3):
        page = (await admin.get(url, params={"limit": 2} | after)).json()
        found += [one["version"] for one in page["versions"]]
        after = {"after": page["next"]}
    assert (found, page["next"]) == ([5, 4, 3, 2, 1], None)


async def test_warming_waits_for_the_blocks_and_tells_them(
    admin: httpx.AsyncClient, owner: str, world: World
) -> None:
    await put(admin, owner, TEXT)
    warm = (await admin.post(f"{owner}/prompts/desk/warm")).json()
    assert warm["tokens"] > len(TEXT)
    assert warm["blocks"] == len(warm["block_hashes"]) == warm["tokens"] // 16
    assert {bytes.fromhex(one) for one in warm["block_hashes"]} <= world.engine.cached.keys()
    shown = (await admin.get(f"{owner}/prompts/desk")).json()
    assert (shown["blocks"], shown["warmed_at"]) == (warm["blocks"], warm["warmed_at"])


async def test_a_pinned_prompt_is_held_until_it_is_unpinned(
    admin: httpx.AsyncClient, owner: str, world: World
) -> None:
    await put(admin, owner, TEXT)
    pinned = (await admin.post(f"{owner}/prompts/desk/pin")).json()
    assert (pinned["pinned"], pinned["warmed_at"] is None) == (True, False)
    assert len(world.engine.pins) == 1
    unpinned = (await admin.post(f"{owner}/prompts/desk/unpin")).json()
    assert not unpinned["pinned"]
    await eventually(lambda: not world.engine.pins)


async def test_a_pin_that_does_not_fit_is_refused_and_not_kept(
    admin: httpx.AsyncClient, world: World
) -> None:
    await put(admin, "/tenants/acme", TEXT)
    await admin.patch("/tenants/acme", json={"limits": {"pinned_blocks": 1}})
    problem(await admin.post("/tenants/acme/prompts/desk/pin"), 409)
    assert not (await admin.get("/tenants/acme/prompts/desk")).json()["pinned"]
    assert not world.engine.pins
    await admin.patch("/tenants/acme", json={"limits": {"pinned_blocks": 100}})
    assert (await admin.post("/tenants/acme/prompts/desk/pin")).is_success


async def test_a_prompt_too_long_to_serve_cannot_be_warmed(
    admin: httpx.AsyncClient, owner: str
) -> None:
    await put(admin, owner, "word " * 1000)
    assert problem(await admin.post(f"{owner}/prompts/desk/warm"), 409)["code"] == "does_not_fit"
    problem(await admin.post(f"{owner}/prompts/desk/pin"), 409)
    assert not (await admin.get(f"{owner}/prompts/desk")).json()["pinned"]


async def test_a_tenant_with_its_cache_off_keeps_nothing_warm(admin: httpx.AsyncClient) -> None:
    await put(admin, "/tenants/acme", TEXT)
    await admin.patch("/tenants/acme", json={"cache": "off"})
    assert fields(await admin.post("/tenants/acme/prompts/desk/warm"), 409) == ["cache"]
    assert fields(await admin.post("/tenants/acme/prompts/desk/pin"), 409) == ["cache"]


async def test_while_the_engine_is_down_warming_is_a_503(
    admin: httpx.AsyncClient, world: World
) -> None:
    await put(admin, "/tenants/acme", TEXT)
    world.engine.down = True
    answer = await admin.post("/tenants/acme/prompts/desk/warm")
    assert problem(answer, 503)["code"] == "engine_unavailable"
    problem(await admin.post("/tenants/acme/prompts/desk/pin"), 503)
    assert not (await admin.get("/tenants/acme/prompts/desk")).json()["pinned"]


@pytest.mark.parametrize(
    ("name", "body", "named"),
    [
        ("desk", {"text": ""}, ["text"]),
        ("desk", {"text": "x" * 300_000}, ["text"]),
        ("desk", {"text": "x", "activate": "yes"}, ["activate"]),
        ("desk", {"text": "x", "adapter": "no name"}, ["adapter"]),
        ("no%20name", {"text": "x"}, ["name"]),
    ],
)
async def test_a_prompt_that_cannot_be_is_refused_by_field(
    admin: httpx.AsyncClient, owner: str, name: str, body: dict[str, Any], named: list[str]
) -> None:
    assert fields(await admin.put(f"{owner}/prompts/{name}", json=body), 422) == named


async def test_prompts_take_no_more_than_their_tenants_stored_bytes(
    admin: httpx.AsyncClient,
) -> None:
    await admin.patch("/tenants/acme", json={"limits": {"stored_bytes": 10_000}})

    async def status(owner: str) -> int:
        answers = [
            await admin.put(f"/tenants/{owner}/prompts/p{number}", json={"text": "x" * 4_000})
            for number in range(3)
        ]
        if answers[-1].status_code == 409:
            assert answers[-1].json()["code"] == "prompts_exceeded"
        return answers[-1].status_code

    assert [await status(owner) for owner in ("acme", "umbra")] == [409, 200]


async def test_a_groups_prompt_serves_its_members_and_nobody_else(
    admin: httpx.AsyncClient, world: World
) -> None:
    async def chat(tenant: str) -> int:
        body = {"input": "hi", "prompt": {"id": "desk"}, "max_output_tokens": 4}
        url = f"{world.base_url}/v1/responses"
        return (await admin.post(url, json=body, headers=world.headers(tenant))).status_code

    await admin.post("/groups", json={"id": "law", "name": "Lawyers"})
    await put(admin, "/groups/law", TEXT)
    await admin.patch("/tenants/acme", json={"share_group": "law"})
    assert (await admin.get("/groups/law/members")).json() == {"members": ["acme"]}
    assert (await chat("acme"), await chat("umbra")) == (200, 400)


async def test_a_group_is_renamed_listed_and_deleted_once_it_is_empty(
    admin: httpx.AsyncClient,
) -> None:
    for group in ("bar", "law"):
        await admin.post("/groups", json={"id": group})
    renamed = (await admin.patch("/groups/law", json={"name": "Lawyers"})).json()
    assert (await admin.get("/groups/law")).json() == renamed
    page = (await admin.get("/groups", params={"limit": 1})).json()
    assert ([one["id"] for one in page["groups"]], page["next"]) == (["bar"], "bar")
    page = (await admin.get("/groups", params={"after": "bar"})).json()
    assert ([one["name"] for one in page["groups"]], page["next"]) == (["Lawyers"], None)
    await admin.patch("/tenants/acme", json={"share_group": "law"})
    assert "acme" in problem(await admin.delete("/groups/law"), 409)["detail"]
    await admin.patch("/tenants/acme", json={"share_group": None})
    assert (await admin.delete("/groups/law")).status_code == 204
    problem(await admin.get("/groups/law"), 404)
    problem(await admin.post("/groups", json={"id": "bar"}), 409)
