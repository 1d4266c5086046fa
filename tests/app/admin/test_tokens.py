"""Admin tokens over HTTP: for who may do everything, shown once, held to a role, revoked."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.app.admin.problem import fields, problem
from tests.app.conftest import World

TOKENS = "/tokens"


async def created(admin: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await admin.post(TOKENS, json={"name": "ci", "role": "admin", **body})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def ask(
    admin: httpx.AsyncClient, token: str, path: str = "/tenants/acme", method: str = "GET"
) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    json = {"name": "spare", "role": "admin"} if path == TOKENS else {"name": "spare"}
    return await admin.request(
        method, path, headers=headers, json=json if method == "POST" else None
    )


async def test_a_token_is_shown_once_and_opens_admin(admin: httpx.AsyncClient) -> None:
    made = await created(admin, name="nightly")
    token = made.pop("admin_token")
    assert (await ask(admin, token)).status_code == 200
    assert (await ask(admin, token, "/tenants/acme/keys", "POST")).status_code == 201
    listed, audit = await admin.get(TOKENS), await admin.get("/audit")
    assert listed.json() == {"tokens": [made]}
    assert (made["live"], made["expires_at"], made["tenant"]) == (True, None, None)
    key, token_made, *_ = audit.json()["entries"]
    assert (key["actor"], key["action"]) == ("token:nightly", "key.create")
    assert (token_made["action"], token_made["target"]) == ("token.create", made["id"])
    secret = token.partition(".")[2]
    assert secret not in listed.text + audit.text


@pytest.mark.parametrize(
    ("role", "statuses"),
    [
        ({"role": "admin"}, (200, 200, 201, 200)),
        ({"role": "read"}, (200, 200, 403, 403)),
        ({"role": "admin", "tenant": "acme"}, (403, 200, 201, 403)),
        ({"role": "read", "tenant": "acme"}, (403, 200, 403, 403)),
        ({"role": "admin", "tenant": "umbra"}, (403, 403, 403, 403)),
    ],
)
async def test_a_token_does_what_its_role_is_for(
    admin: httpx.AsyncClient, role: dict[str, str], statuses: tuple[int, ...]
) -> None:
    token = (await created(admin, **role))["admin_token"]
    answers = [
        await ask(admin, token, "/tenants"),
        await ask(admin, token),
        await ask(admin, token, "/tenants/acme/keys", "POST"),
        await ask(admin, token, TOKENS),
    ]
    assert tuple(answer.status_code for answer in answers) == statuses
    if statuses[-1] == 403:
        made = await ask(admin, token, TOKENS, "POST")
        assert problem(made, 403)["code"] == "not_for_this_token"


async def test_a_revoked_token_opens_nothing_any_more(admin: httpx.AsyncClient) -> None:
    made = await created(admin)
    assert (await admin.delete(f"{TOKENS}/{made['id']}")).status_code == 204
    problem(await ask(admin, made["admin_token"]), 401)
    assert (await admin.get(TOKENS)).json() == {"tokens": []}
    gone = problem(await admin.delete(f"{TOKENS}/{made['id']}"), 404)
    assert gone["code"] == "token_not_found"


async def test_a_token_may_revoke_itself(admin: httpx.AsyncClient) -> None:
    made = await created(admin)
    answer = await ask(admin, made["admin_token"], f"{TOKENS}/{made['id']}", "DELETE")
    assert answer.status_code == 204
    problem(await ask(admin, made["admin_token"]), 401)


async def test_in_an_outage_the_tokens_of_the_service_itself_hold(
    admin: httpx.AsyncClient, world: World
) -> None:
    token = (await created(admin))["admin_token"]
    assert (await ask(admin, token, "/live")).status_code == 200
    with world.outage():
        assert (await admin.get("/live")).status_code == 200
        refused = problem(await ask(admin, token, "/live"), 503)
        assert refused["code"] == "store_unavailable"
        problem(await ask(admin, "pwadmin_not-this-one", "/live"), 401)
    async with asyncio.timeout(20):
        while (await ask(admin, token, "/live")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_token_made_twice_is_made_once(admin: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "one"}
    body = {"name": "ci", "role": "read"}
    made = [await admin.post(TOKENS, json=body, headers=headers) for _ in range(2)]
    assert made[0].json() == made[1].json()
    assert len((await admin.get(TOKENS)).json()["tokens"]) == 1
    # Somebody else's token of the same name is somebody else.
    others = [await created(admin, name="same") for _ in range(2)]
    ids = set()
    for other in others:
        asked = headers | {"authorization": f"Bearer {other['admin_token']}"}
        ids.add((await admin.post(TOKENS, json=body, headers=asked)).json()["id"])
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"role": "read"}, "name"),
        ({"name": "ci"}, "role"),
        ({"name": "ci", "role": "owner"}, "role"),
        ({"name": "ci", "role": "read", "tenant": "ACME"}, "tenant"),
        ({"name": "ci", "role": "read", "expires_in_seconds": 0}, "expires_in_seconds"),
        ({"name": "two\nlines", "role": "read"}, "name"),
    ],
)
async def test_a_bad_field_is_named(
    admin: httpx.AsyncClient, body: dict[str, Any], named: str
) -> None:
    assert fields(await admin.post(TOKENS, json=body), 422) == [named]
