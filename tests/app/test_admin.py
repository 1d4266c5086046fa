"""The operator's interface: tenants and prompts over HTTP, with errors that name the field."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from app.admin_token import AdminToken
from app.problems import MEDIA_TYPE
from app.routes.admin import admin_routes
from tenants.connection import GuardedRedis, open_redis
from tenants.embedded import EmbeddedStore
from tenants.store import TenantStore
from tenants.system_prompts import SystemPrompts

TOKEN = "pwadmin_test"


@pytest.fixture
async def admin(store_server: EmbeddedStore) -> AsyncIterator[httpx.AsyncClient]:
    redis = await open_redis(store_server.url)
    await redis.execute("FLUSHALL")
    token = AdminToken(sha256(TOKEN.encode()).digest())
    routes = admin_routes(TenantStore(redis, b"pepper"), SystemPrompts(redis), token, 10_000)
    transport = httpx.ASGITransport(Starlette(routes=routes))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://service/admin", headers=headers
    ) as client:
        yield client
    await redis.close()


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer with that status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["title"]
    return document


async def test_a_tenant_is_created_shown_listed_and_deleted(admin: httpx.AsyncClient) -> None:
    created = await admin.post("/tenants", json={"id": "acme", "name": "Acme Inc."})
    assert created.status_code == 201
    assert created.json()["api_key"].startswith("pw_")
    shown = (await admin.get("/tenants/acme")).json()
    assert shown == {key: created.json()[key] for key in ("id", "name", "created_at")}
    assert (await admin.get("/tenants")).json() == {"tenants": [shown]}
    assert (await admin.delete("/tenants/acme")).status_code == 204
    problem(await admin.get("/tenants/acme"), 404)


async def test_a_rotated_key_is_another_one(admin: httpx.AsyncClient) -> None:
    first = (await admin.post("/tenants", json={"id": "acme"})).json()["api_key"]
    second = (await admin.post("/tenants/acme/keys/rotate")).json()["api_key"]
    assert second.startswith("pw_")
    assert second != first


async def test_a_prompt_is_registered_shown_listed_and_deleted(admin: httpx.AsyncClient) -> None:
    await admin.post("/tenants", json={"id": "acme"})
    url = "/tenants/acme/prompts/support"
    put = (await admin.put(url, json={"text": "Be brief."})).json()
    assert (put["version"], put["warmed_at"]) == (1, None)
    assert (await admin.get(url)).json() == put | {"text": "Be brief."}
    assert (await admin.get("/tenants/acme/prompts")).json() == {"prompts": [put]}
    assert (await admin.put(url, json={"text": "Be kind."})).json()["version"] == 2
    assert (await admin.delete(url)).status_code == 204
    problem(await admin.get(url), 404)


@pytest.mark.parametrize("header", [None, "Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer "])
async def test_without_the_token_nothing_is_shown_or_changed(
    admin: httpx.AsyncClient, header: str | None
) -> None:
    headers = {"authorization": header or ""}
    problem(await admin.get("/tenants", headers=headers), 401)
    problem(await admin.post("/tenants", json={"id": "acme"}, headers=headers), 401)
    assert (await admin.get("/tenants")).json() == {"tenants": []}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "id"),
        ({"id": 7}, "id"),
        ({"id": "Not an id"}, "id"),
        ({"id": "acme", "name": ""}, "name"),
        ({"id": "acme", "plan": "gold"}, "plan"),
    ],
)
async def test_a_bad_field_is_named_and_nothing_is_created(
    admin: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    document = problem(await admin.post("/tenants", json=body), 422)
    assert [error["field"] for error in document["errors"]] == [field]
    assert (await admin.get("/tenants")).json() == {"tenants": []}


async def test_an_empty_prompt_is_refused_by_field(admin: httpx.AsyncClient) -> None:
    await admin.post("/tenants", json={"id": "acme"})
    answer = await admin.put("/tenants/acme/prompts/support", json={"text": ""})
    assert problem(answer, 422)["errors"][0]["field"] == "text"


async def test_a_tenant_that_exists_is_not_replaced(admin: httpx.AsyncClient) -> None:
    await admin.post("/tenants", json={"id": "acme", "name": "first"})
    problem(await admin.post("/tenants", json={"id": "acme", "name": "second"}), 409)
    assert (await admin.get("/tenants/acme")).json()["name"] == "first"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/tenants/nobody"),
        ("POST", "/tenants/nobody/keys/rotate"),
        ("GET", "/tenants/nobody/prompts"),
        ("PUT", "/tenants/nobody/prompts/support"),
        ("DELETE", "/tenants/nobody/prompts/support"),
    ],
)
async def test_an_unknown_tenant_is_a_404(admin: httpx.AsyncClient, method: str, path: str) -> None:
    body = {"text": "Be brief."} if method == "PUT" else None
    problem(await admin.request(method, path, json=body), 404)


async def test_bodies_that_are_not_json_or_too_large_are_refused(admin: httpx.AsyncClient) -> None:
    json_header = {"content-type": "application/json"}
    problem(await admin.post("/tenants", content=b"{", headers=json_header), 400)
    problem(await admin.post("/tenants", content=b"[]", headers=json_header), 422)
    problem(await admin.post("/tenants", json={"id": "x" * 20_000}), 413)


async def test_a_store_that_is_down_is_a_503(admin: httpx.AsyncClient) -> None:
    redis = await open_redis_that_dies()
    token = AdminToken(sha256(TOKEN.encode()).digest())
    routes = admin_routes(TenantStore(redis, b"pepper"), SystemPrompts(redis), token, 10_000)
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://service/admin", headers=admin.headers
    ) as client:
        problem(await client.get("/tenants"), 503)
    await redis.close()


async def open_redis_that_dies() -> GuardedRedis:
    """A connection whose server is gone by the time it is used."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder)) as server:
        return await open_redis(server.url)
