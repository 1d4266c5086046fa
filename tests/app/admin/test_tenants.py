"""The operator's interface over HTTP: tenants, prompts, and errors that name the field."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tenants.records import TenantLimits
from tests.app.admin.problem import fields, problem
from tests.app.conftest import ADMIN_TOKEN, World


async def test_a_tenant_is_created_shown_and_deleted(admin: httpx.AsyncClient) -> None:
    created = await admin.post("/tenants", json={"id": "nova", "name": "Nova Inc."})
    assert created.status_code == 201
    document = created.json()
    assert document.pop("api_key").startswith("pw_")
    assert (await admin.get("/tenants/nova")).json() == document
    assert (document["status"], document["limits"]["sockets"]) == ("active", None)
    deleted = await admin.delete("/tenants/nova")
    assert deleted.json() == {"id": "nova", "usage": []}
    assert problem(await admin.get("/tenants/nova"), 404)["code"] == "tenant_not_found"


async def test_a_new_tenant_has_what_it_was_given(admin: httpx.AsyncClient) -> None:
    await admin.post("/groups", json={"id": "law"})
    given = {
        "id": "nova",
        "status": "disabled",
        "weight": 2.5,
        "cache": "off",
        "share_group": "law",
        "unknown_fields": "ignore",
        "limits": {"sockets": 0},
    }
    created = (await admin.post("/tenants", json=given)).json()
    assert {name: created[name] for name in given if name != "limits"} == {
        name: value for name, value in given.items() if name != "limits"
    }
    assert created["limits"]["sockets"] == 0


async def test_tenants_are_listed_page_by_page(admin: httpx.AsyncClient) -> None:
    for number in range(5):
        await admin.post("/tenants", json={"id": f"t{number}"})
    found, after = [], {}
    for _ in range(4):
        page = (await admin.get("/tenants", params={"limit": 2} | after)).json()
        found += [tenant["id"] for tenant in page["tenants"]]
        if page["next"] is None:
            break
        assert len(page["tenants"]) == 2
        after = {"after": page["next"]}
    assert found == ["acme", "t0", "t1", "t2", "t3", "t4", "umbra"]


async def test_what_holds_for_a_tenant_is_its_own_limits_over_the_services_defaults(
    admin: httpx.AsyncClient, world: World
) -> None:
    limiter = world.stores.limiter
    limiter.defaults = TenantLimits(sockets=5, requests_per_minute=9, stored_bytes=1000)
    given = {"limits": {"sockets": "unlimited", "requests_per_minute": 3, "blocks": 7}}
    patched = (await admin.patch("/tenants/acme", json=given)).json()["limits"]
    assert (patched["sockets"], patched["stored_bytes"]) == ("unlimited", None)
    effective = (await admin.get("/tenants/acme/effective-limits")).json()
    assert {name: limit for name, limit in effective.items() if limit is not None} == {
        "requests_per_minute": 3,
        "stored_bytes": 1000,
        "blocks": 7,
    }
    refused = await admin.patch("/tenants/acme", json={"limits": {"blocks": "unlimited"}})
    assert refused.status_code == 422


async def test_a_patch_changes_what_it_names_and_nothing_else(admin: httpx.AsyncClient) -> None:
    await admin.patch("/tenants/acme", json={"limits": {"sockets": 3, "output_tokens": 9}})
    before = (await admin.get("/tenants/acme")).json()
    patched = await admin.patch(
        "/tenants/acme", json={"weight": 2, "limits": {"output_tokens": None}}
    )
    expected = before | {"weight": 2.0, "revision": before["revision"] + 1}
    expected["limits"] = before["limits"] | {"output_tokens": None}
    assert patched.json() == (await admin.get("/tenants/acme")).json() == expected


async def test_a_disabled_tenants_requests_are_refused_until_it_is_enabled(
    admin: httpx.AsyncClient, world: World
) -> None:
    async def chat() -> int:
        body = {"input": "hello", "max_output_tokens": 4}
        url = f"{world.base_url}/v1/responses"
        return (await admin.post(url, json=body, headers=world.headers("acme"))).status_code

    assert await chat() == 200
    await admin.patch("/tenants/acme", json={"status": "disabled"})
    assert await chat() == 403
    await admin.patch("/tenants/acme", json={"status": "active"})
    assert await chat() == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "id"),
        ({"id": 7}, "id"),
        ({"id": "Not an id"}, "id"),
        ({"id": "nova", "name": ""}, "name"),
        ({"id": "nova", "name": None}, "name"),
        ({"id": "nova", "weight": 0}, "weight"),
        ({"id": "nova", "limits": {"tokens_per_day": 0}}, "limits.tokens_per_day"),
        ({"id": "nova", "limits": {"stars": 5}}, "limits.stars"),
        ({"id": "nova", "adapter": "no name"}, "adapter"),
        ({"id": "nova", "plan": "gold"}, "plan"),
    ],
)
async def test_a_bad_field_is_named_and_nothing_is_created(
    admin: httpx.AsyncClient, body: dict[str, Any], named: str
) -> None:
    assert fields(await admin.post("/tenants", json=body), 422) == [named]
    problem(await admin.get("/tenants/nova"), 404)


async def test_a_share_group_that_is_not_there_is_named(admin: httpx.AsyncClient) -> None:
    assert fields(await admin.patch("/tenants/acme", json={"share_group": "law"}), 409) == [
        "share_group"
    ]
    await admin.post("/groups", json={"id": "law"})
    joined = await admin.patch("/tenants/acme", json={"share_group": "law"})
    assert joined.json()["share_group"] == "law"


async def test_reserves_and_pins_of_all_tenants_leave_half_of_the_engine_to_everybody(
    admin: httpx.AsyncClient, world: World
) -> None:
    half = world.engine.info.num_blocks // 2
    assert (await admin.patch("/tenants/acme", json={"reserved_blocks": half - 5})).is_success
    pins = {"limits": {"pinned_blocks": 6}}
    assert fields(await admin.patch("/tenants/umbra", json=pins), 409) == ["limits.pinned_blocks"]
    new = {"id": "nova", "reserved_blocks": 6}
    assert fields(await admin.post("/tenants", json=new), 409) == ["reserved_blocks"]
    problem(await admin.get("/tenants/nova"), 404)
    assert (await admin.post("/tenants", json=new | {"reserved_blocks": 5})).is_success
    assert (await admin.patch("/tenants/acme", json={"reserved_blocks": 1})).is_success
    assert (await admin.patch("/tenants/umbra", json=pins)).is_success


async def test_a_tenant_that_exists_is_not_replaced(admin: httpx.AsyncClient) -> None:
    answer = await admin.post("/tenants", json={"id": "acme", "name": "second"})
    assert problem(answer, 409)["code"] == "tenant_exists"
    assert (await admin.get("/tenants/acme")).json()["name"] == "acme"


@pytest.mark.parametrize("header", [None, "Bearer wrong", ADMIN_TOKEN, f"Basic {ADMIN_TOKEN}"])
async def test_without_the_token_nothing_is_shown_or_changed(
    admin: httpx.AsyncClient, header: str | None
) -> None:
    headers = {"authorization": header or ""}
    refused = await admin.get("/tenants/acme", headers=headers)
    assert problem(refused, 401)["code"] == "invalid_admin_token"
    assert refused.headers["www-authenticate"].startswith("Bearer")
    problem(await admin.post("/tenants", json={"id": "nova"}, headers=headers), 401)
    problem(await admin.get("/tenants/nova"), 404)


async def test_an_api_key_is_no_admin_token(admin: httpx.AsyncClient, world: World) -> None:
    problem(await admin.get("/tenants", headers=world.headers("acme")), 401)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/tenants/nobody", {"weight": 2}),
        ("DELETE", "/tenants/nobody", None),
        ("GET", "/tenants/nobody/keys", None),
        ("POST", "/tenants/nobody/keys", {"name": "ci"}),
        ("POST", "/tenants/acme/keys/0123456789abcdef/rotate", None),
        ("DELETE", "/tenants/acme/keys/0123456789abcdef", None),
        ("GET", "/tenants/nobody/prompts", None),
        ("PUT", "/tenants/nobody/prompts/desk", {"text": "Be brief."}),
        ("DELETE", "/tenants/acme/prompts/desk", None),
        ("POST", "/tenants/acme/prompts/desk/warm", None),
        ("POST", "/tenants/acme/prompts/desk/pin", None),
        ("GET", "/groups/nobody", None),
        ("GET", "/groups/nobody/members", None),
        ("GET", "/groups/nobody/prompts", None),
        ("PATCH", "/groups/nobody", {"name": "x"}),
        ("GET", "/tenants/nobody/usage", None),
        ("GET", "/nothing", None),
        ("GET", "/tenants/Not%20an%20id", None),
    ],
)
async def test_what_is_not_there_is_a_404(
    admin: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None
) -> None:
    problem(await admin.request(method, path, json=body), 404)


async def test_a_wrong_method_is_told_the_right_ones(admin: httpx.AsyncClient) -> None:
    answer = await admin.put("/tenants/acme", json={})
    problem(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == {"DELETE", "GET", "HEAD", "PATCH"}


async def test_a_request_that_says_more_than_can_be_heard_is_refused(
    admin: httpx.AsyncClient,
) -> None:
    assert fields(await admin.get("/tenants?page=2"), 422) == ["page"]
    assert fields(await admin.get("/tenants?limit=1&limit=2"), 422) == ["limit"]
    assert fields(await admin.get("/tenants?limit=0"), 422) == ["limit"]
    assert fields(await admin.get("/tenants/acme/usage?since=1700000000"), 422) == ["since"]


async def test_bodies_that_are_not_json_or_too_large_are_refused(admin: httpx.AsyncClient) -> None:
    json_header = {"content-type": "application/json"}
    assert problem(await admin.post("/tenants", content=b"{", headers=json_header), 400)
    problem(await admin.post("/tenants", content=b"[]", headers=json_header), 422)
    problem(await admin.post("/tenants", content=b"id=nova", headers={"content-type": "x/y"}), 415)
    problem(await admin.post("/tenants", json={"id": "x" * 5_000_000}), 413)


async def test_problems_are_short_whatever_was_sent(admin: httpx.AsyncClient) -> None:
    unknown = {f"field-{number}": 0 for number in range(5000)}
    assert len(fields(await admin.post("/tenants", json=unknown), 422)) == 32
    long = {"id": "nova", "share_group": "g" * 1_000_000, "n" * 1_000_000: 0}
    for answer in (
        await admin.post("/tenants", json=long),
        await admin.post("/tenants", json={"id": "nova", "share_group": "g" * 1_000_000}),
    ):
        problem(answer, 422)
        assert len(answer.content) < 4000


async def test_a_store_that_is_down_is_a_503(admin: httpx.AsyncClient, world: World) -> None:
    with world.outage():
        answer = await admin.post("/tenants", json={"id": "nova"})
        assert problem(answer, 503)["code"] == "store_unavailable"
        assert answer.headers["retry-after"] == "1"


async def test_a_secret_is_replaced_until_there_are_too_many_former_ones(
    admin: httpx.AsyncClient, world: World
) -> None:
    await admin.post("/groups", json={"id": "law"})
    for path in ("/tenants/acme", "/groups/law"):
        before = (await admin.get(path)).json()
        for number in range(4):
            rotated = await admin.post(f"{path}/rotate-secret")
            assert rotated.json() == before | {"revision": before["revision"] + number + 1}
        assert problem(await admin.post(f"{path}/rotate-secret"), 409)["code"] == "conflict"
        assert (await admin.post(f"{path}-no/rotate-secret")).status_code == 404
    tenant = await world.stores.tenants.get_tenant("acme")
    secrets = {tenant.namespace_secret, *(one.secret for one in tenant.former_secrets)}
    assert len(secrets) == 5
    assert world.tenants["acme"].namespace_secret in secrets
    assert tenant.namespace_secret != world.tenants["acme"].namespace_secret
    actions = [one["action"] for one in (await admin.get("/audit")).json()["entries"]]
    assert actions[:8] == ["group.rotate_secret"] * 4 + ["tenant.rotate_secret"] * 4


async def test_what_may_be_of_two_kinds_is_complained_of_once_and_in_plain_words(
    admin: httpx.AsyncClient,
) -> None:
    wrong = {"limits": {"requests_per_minute": "many", "tokens_per_day": 1.5}}
    problem = (await admin.patch("/tenants/acme", json=wrong)).json()
    assert problem["errors"] == [
        {
            "field": "limits.requests_per_minute",
            "detail": "Input should be a valid integer, or 'unlimited'",
        },
        {"field": "limits.tokens_per_day", "detail": "Input should be a valid integer"},
    ]
    named = {"limits": {"literal['unlimited']": 1}}
    problem = (await admin.patch("/tenants/acme", json=named)).json()
    assert [one["field"] for one in problem["errors"]] == ["limits.literal['unlimited']"]
