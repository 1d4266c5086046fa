"""API keys over HTTP: several for each tenant, shown once, expiring, rotated, revoked."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.app.admin.problem import fields, problem
from tests.app.conftest import World

KEYS = "/tenants/acme/keys"


async def chats(world: World, api_key: str) -> bool:
    """Whether a key opens the service."""
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{world.base_url}/v1/models", headers=headers)
    assert answer.status_code in (200, 401)
    return answer.status_code == 200


async def created(admin: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await admin.post(KEYS, json=body)
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def test_a_key_is_shown_once_and_opens_the_service(
    admin: httpx.AsyncClient, world: World
) -> None:
    key = await created(admin, name="ci")
    api_key = key.pop("api_key")
    assert await chats(world, api_key)
    shown = await admin.get(f"{KEYS}/{key['id']}")
    assert shown.json() == key
    assert (key["name"], key["live"], key["expires_at"]) == ("ci", True, None)
    listed = await admin.get(KEYS)
    assert [one["name"] for one in listed.json()["keys"]] == ["ci", "default"]
    secret = api_key.partition(".")[2]
    audit = await admin.get("/audit")
    assert key["id"] in audit.text
    assert not [text for text in (shown.text, listed.text, audit.text) if secret in text]


async def test_a_key_ends_when_it_was_to_end(admin: httpx.AsyncClient, world: World) -> None:
    key = await created(admin, name="guest", expires_in_seconds=3600)
    made, end = (datetime.fromisoformat(key[name]) for name in ("created_at", "expires_at"))
    assert timedelta(seconds=3598) < end - made < timedelta(seconds=3602)
    for_ever = await admin.patch(f"{KEYS}/{key['id']}", json={"expires_in_seconds": None})
    assert (for_ever.json()["expires_at"], for_ever.json()["name"]) == (None, "guest")
    renamed = await admin.patch(f"{KEYS}/{key['id']}", json={"name": "friend"})
    assert (renamed.json()["expires_at"], renamed.json()["name"]) == (None, "friend")
    assert await chats(world, key["api_key"])


async def test_a_rotated_key_lives_on_for_the_overlap_and_no_longer(
    admin: httpx.AsyncClient, world: World
) -> None:
    old = await created(admin, name="ci")
    rotated = await admin.post(f"{KEYS}/{old['id']}/rotate", json={"overlap_seconds": 3600})
    new = rotated.json()
    assert (rotated.status_code, new["name"]) == (201, "ci")
    assert await chats(world, old["api_key"])
    assert await chats(world, new["api_key"])
    assert (await admin.get(f"{KEYS}/{old['id']}")).json()["replaced_by"] == new["id"]
    newest = (await admin.post(f"{KEYS}/{new['id']}/rotate")).json()
    assert await chats(world, newest["api_key"])
    assert not await chats(world, new["api_key"])


async def test_a_revoked_key_is_gone_and_the_others_are_not(
    admin: httpx.AsyncClient, world: World
) -> None:
    key = await created(admin, name="ci")
    assert (await admin.delete(f"{KEYS}/{key['id']}")).status_code == 204
    assert not await chats(world, key["api_key"])
    assert await chats(world, world.keys["acme"])
    problem(await admin.get(f"{KEYS}/{key['id']}"), 404)


async def test_a_tenant_has_so_many_keys_and_no_more(admin: httpx.AsyncClient) -> None:
    for number in range(31):
        await created(admin, name=f"key {number}")
    assert "32" in problem(await admin.post(KEYS, json={"name": "one more"}), 409)["detail"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "ci", "expires_in_seconds": 0}, "expires_in_seconds"),
        ({"name": "ci", "expires_at": "2030-01-01"}, "expires_at"),
    ],
)
async def test_a_bad_field_is_named(
    admin: httpx.AsyncClient, body: dict[str, Any], named: str
) -> None:
    assert fields(await admin.post(KEYS, json=body), 422) == [named]
    assert len((await admin.get(KEYS)).json()["keys"]) == 1
