"""What the chat asks for beside the page, on both ports."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from app.console.chat import OPERATOR
from tests.app.conftest import ADMIN_TOKEN, MODEL, World

AS_OPERATOR = {OPERATOR: ADMIN_TOKEN}


async def got(url: str, headers: Mapping[str, str], method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(headers=dict(headers), trust_env=False) as client:
        return await client.request(method, url)


async def test_a_key_tells_whose_it_is(world: World) -> None:
    for url, headers in ((world.base_url, {}), (world.admin_url, AS_OPERATOR)):
        told = await got(f"{url}/console/me", world.headers("umbra") | headers)
        assert told.json() == {"tenant": "umbra"}
        assert (await got(f"{url}/console/me", headers)).status_code == 401


async def test_operators_with_a_key_are_told_what_its_tenant_is(world: World) -> None:
    await world.prompts.put("acme", "desk", "For {{who}}.")
    headers = world.headers("acme") | AS_OPERATOR
    told = (await got(f"{world.admin_url}/console/prompts", headers)).json()["data"]
    assert [(one["id"], one["variables"]) for one in told] == [("desk", ["who"])]
    told = (await got(f"{world.admin_url}/console/models", headers)).json()["data"]
    assert [(one["id"], one["input_modalities"]) for one in told] == [(MODEL, ["text"])]
    kept = await world.client("acme").responses.create(model=MODEL, input="Hello")
    place = f"{world.admin_url}/console/responses/{kept.id}"
    assert (await got(place, headers)).json()["id"] == kept.id
    assert (await got(place, world.headers("umbra") | AS_OPERATOR)).status_code == 404
    assert (await got(place, headers, "DELETE")).status_code == 200
    assert (await got(place, headers)).status_code == 404


@pytest.mark.parametrize("path", ["me", "models", "prompts", "responses/resp_1"])
async def test_nobody_else_is_told_anything_there(world: World, path: str) -> None:
    for headers in ({}, {OPERATOR: "of nobody"}):
        answer = await got(f"{world.admin_url}/console/{path}", world.headers("acme") | headers)
        assert answer.status_code == 401
