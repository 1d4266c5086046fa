"""Tokens that are for reading, or for one tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.admin.door import Door
from app.admin.token import load_admin_token
from app.assembly.service import create_admin_app
from tests.app.conftest import World

ANN, BOB = "correct-horse-battery", "staple-donkey-monday"


@pytest.fixture
async def client(world: World, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """To the same service, whose operators have tokens of their own."""
    (tmp_path / "tokens").write_text(f"ann {ANN} read\nbob {BOB} tenant:acme\n")
    tokens = load_admin_token(tmp_path, tmp_path / "tokens")
    door = Door(tokens, world.stores.operator_tokens)
    app = create_admin_app(world.app.state.service, door)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin/admin") as client:
        yield client


async def ask(client: httpx.AsyncClient, token: str, request: str) -> httpx.Response:
    method, path = request.split()
    json = {"name": "spare"} if method == "POST" else {"weight": 9} if method == "PATCH" else None
    headers = {"authorization": f"Bearer {token}"}
    return await client.request(method, path, json=json, headers=headers)


@pytest.mark.parametrize(
    ("token", "request_", "status"),
    [
        (ANN, "GET /tenants", 200),
        (ANN, "GET /live", 200),
        (ANN, "GET /wall/requests", 200),
        (ANN, "POST /tenants/acme/keys", 403),
        (ANN, "PATCH /tenants/acme", 403),
        (BOB, "GET /tenants/acme", 200),
        (BOB, "POST /tenants/acme/keys", 201),
        (BOB, "PATCH /tenants/acme", 403),
        (BOB, "DELETE /tenants/acme", 403),
        (BOB, "GET /tenants", 403),
        (BOB, "GET /audit", 403),
        (BOB, "GET /wall", 403),
        (BOB, "GET /wall/requests", 403),
        (BOB, "GET /tenants/nobody", 403),
    ],
)
async def test_a_token_does_what_it_is_for(
    client: httpx.AsyncClient, token: str, request_: str, status: int
) -> None:
    answer = await ask(client, token, request_)
    assert answer.status_code == status, answer.text
    if status == 403:
        problem = answer.json()
        assert problem["code"] == "not_for_this_token"
        assert ("bob" if token == BOB else "ann") in problem["detail"]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (ANN, {"name": "ann", "role": "read", "tenant": None}),
        (BOB, {"name": "bob", "role": "admin", "tenant": "acme"}),
    ],
)
async def test_a_token_tells_what_it_is_for(
    client: httpx.AsyncClient, token: str, shown: dict[str, str | None]
) -> None:
    answer = await ask(client, token, "GET /me")
    assert (answer.status_code, answer.json()) == (200, shown)


async def test_the_audit_names_who_held_the_token(client: httpx.AsyncClient) -> None:
    await ask(client, BOB, "POST /tenants/acme/keys")
    entries = (await ask(client, ANN, "GET /audit")).json()
    assert "bob" in str(entries)
