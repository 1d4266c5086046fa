"""Tenants in the console: what an operator does there is done, and what is refused is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.app.conftest import MODEL, World
from tests.app.console.chatting import connected
from tests.app.console.looks import check_looks
from tests.app.console.signing_in import sign_in
from tests.tenants.adapters.putting import put

MISTAKES = re.compile(r"status of 4\d\d")


async def opened(page: Page, world: World, tenant: str = "acme") -> Locator:
    """The details of a tenant, chosen in the table."""
    await sign_in(page, world.admin_url, view="tenants")
    await page.get_by_role("button", name=tenant, exact=True).click()
    details = page.locator("#view-tenants .details")
    await expect(details).to_contain_text("Delete the tenant")
    return details


async def told(admin: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await admin.get(path)
    assert answer.is_success
    document: dict[str, Any] = answer.json()
    return document


async def test_a_tenant_is_made_and_its_key_shown_once(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await sign_in(page, world.admin_url, view="tenants")
    await page.get_by_label("New tenant's id").fill("zeta")
    await page.get_by_role("button", name="Create the tenant").click()
    key = await page.get_by_label("The new API key, shown once").input_value()
    headers = {"authorization": f"Bearer {key}"}
    answer = await admin.get(f"{world.base_url}/v1/models", headers=headers)
    assert answer.is_success
    await expect(page.get_by_role("button", name="zeta", exact=True)).to_be_visible()
    assert (await told(admin, "/audit?owner=zeta"))["entries"][0]["action"] == "tenant.create"
    await page.get_by_role("button", name="zeta", exact=True).click()
    await expect(page.get_by_label("The new API key, shown once")).to_have_count(0)


async def test_a_record_is_changed_and_what_is_refused_is_named(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    details = await opened(page, world)
    limit = details.get_by_label("Requests per minute", exact=True)
    await limit.fill("Infinity")
    await details.get_by_role("button", name="Save").click()
    await expect(details.get_by_role("alert").first).to_contain_text("requests_per_minute")
    await limit.fill("7")
    await details.get_by_label("Weight").fill("2.5")
    await details.get_by_label("Unknown fields").select_option("ignore")
    await details.get_by_role("button", name="Save").click()
    await expect(details.get_by_label("Weight")).to_have_value("2.5")
    await expect(details).to_contain_text("requests_per_minute: 7")
    tenant = await told(admin, "/tenants/acme")
    assert (tenant["weight"], tenant["limits"]["requests_per_minute"]) == (2.5, 7)
    assert tenant["unknown_fields"] == "ignore"
    await expect(limit).to_have_value("7")
    await limit.fill("")
    await details.get_by_label("Unknown fields").select_option("")
    await details.get_by_label("Status").select_option("disabled")
    await details.get_by_role("button", name="Save").click()
    row = page.get_by_role("row", name=re.compile("^acme"))
    await expect(row).to_contain_text("disabled")
    tenant = await told(admin, "/tenants/acme")
    assert (tenant["status"], tenant["limits"]["requests_per_minute"]) == ("disabled", None)
    assert tenant["unknown_fields"] is None
    assert [one for one in complaints if not MISTAKES.search(one)] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_what_somebody_else_has_changed_is_not_overwritten(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    details = await opened(page, world)
    await admin.patch("/tenants/acme", json={"weight": 3})
    await details.get_by_label("Weight").fill("4")
    await details.get_by_role("button", name="Save").click()
    await expect(details.get_by_role("alert").first).to_contain_text("has changed")
    assert (await told(admin, "/tenants/acme"))["weight"] == 3
    assert [one for one in complaints if not MISTAKES.search(one)] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_keys_are_made_rotated_and_revoked(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    async def keys() -> Mapping[str, Any]:
        listed = (await told(admin, "/tenants/acme/keys"))["keys"]
        return {key["id"]: key for key in listed if key["name"] == "robot"}

    details = await opened(page, world)
    await details.get_by_label("What it is for").fill("robot")
    await details.get_by_label("Days that it lasts").fill("3")
    await details.get_by_role("button", name="Make a key").click()
    shown = page.get_by_label("The new API key, shown once")
    first = await shown.input_value()
    [made] = (await keys()).values()
    assert made["id"] in first
    assert made["expires_at"]
    row = details.get_by_role("row", name=re.compile("^robot"))
    await row.get_by_role("button", name="Rotate").click()
    await expect(shown).not_to_have_value(first)
    [replaced] = [key for key in (await keys()).values() if key["replaced_by"]]
    assert replaced["id"] == made["id"]
    fresh = replaced["replaced_by"]
    table = details.get_by_role("region", name="API keys")
    row = table.get_by_role("row", name=re.compile(fresh))
    await row.get_by_role("button", name="Revoke").click()
    await row.get_by_role("button", name="Really revoke?").click()
    await expect(details).to_contain_text("key.revoke")
    await expect(row.get_by_role("button")).to_have_count(0)
    assert not (await keys()).get(fresh, {"live": False})["live"]


@pytest.mark.exhaustive
async def test_admin_tokens_are_made_and_revoked(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await sign_in(page, world.admin_url, view="tenants")
    await page.get_by_role("button", name="Show admin tokens").click()
    await page.get_by_label("Who or what it is for").fill("probe")
    await page.get_by_label("Tenant that it is held to").fill("acme")
    await page.get_by_role("button", name="Make a token").click()
    token = await page.get_by_label("The new admin token, shown once").input_value()
    bearing = {"authorization": f"Bearer {token}"}
    assert (await admin.get("/tenants/acme", headers=bearing)).is_success
    assert (await admin.get("/tenants/umbra", headers=bearing)).status_code == 403
    row = page.get_by_role("row", name=re.compile("^probe read acme"))
    await row.get_by_role("button", name="Revoke").click()
    await row.get_by_role("button", name="Really revoke?").click()
    await expect(row).to_have_count(0)
    assert (await admin.get("/tenants/acme", headers=bearing)).status_code == 401


@pytest.mark.exhaustive
async def test_what_was_opened_last_is_all_that_is_shown(page: Page, world: World) -> None:
    async def late(route: Route) -> None:
        await asyncio.sleep(1)
        await route.continue_()

    await page.route("**/admin/tenants/acme/keys", late)
    await sign_in(page, world.admin_url, view="tenants")
    await page.get_by_role("button", name="acme", exact=True).click()
    details = page.locator("#view-tenants > .details")
    await expect(details).to_contain_text("Record")
    async with page.expect_response("**/admin/tenants/acme/keys"):
        await page.get_by_role("button", name="umbra", exact=True).click()
        await expect(details).to_contain_text("Type umbra to delete it")
    await asyncio.sleep(0.5)
    assert await details.locator("summary").all_inner_texts() == [
        *("Record", "API keys", "System prompts", "Adapters", "Usage", "Audit", "Delete")
    ]
    await expect(details).not_to_contain_text("acme")


@pytest.mark.exhaustive
async def test_tenants_are_there_once_the_store_is(
    page: Page, world: World, complaints: list[str]
) -> None:
    with world.outage():
        await sign_in(page, world.admin_url, view="tenants")
        await expect(page.locator("#view-tenants > .news")).to_contain_text("not available")
    await expect(page.get_by_role("button", name="umbra", exact=True)).to_be_visible()
    await expect(page.locator("#view-tenants > .news")).to_have_text("")
    await page.get_by_label("Tenant, or @ and a group").fill("acme#x")
    await page.get_by_role("button", name="Open").click()
    await expect(page.get_by_role("alert").first).to_contain_text("no tenant's id")
    assert [one for one in complaints if "503" not in one] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_who_is_held_to_a_tenant_sees_it_and_chats_as_it(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    token = {"name": "bob", "role": "admin", "tenant": "acme"}
    made = (await admin.post("/tokens", json=token)).json()
    await world.register("acme", "desk", "You are at the desk. " * 4)
    await sign_in(page, world.admin_url, made["admin_token"], view="wall")
    details = page.locator("#view-tenants .details")
    await expect(details).to_contain_text("Usage")
    assert await page.get_by_role("link").all_inner_texts() == ["Tenants", "Chat"]
    for absent in ("Audit", "Delete the tenant", "umbra"):
        await expect(page.locator("#view-tenants")).not_to_contain_text(absent)
    await details.get_by_label("Weight").fill("4")
    await details.get_by_role("button", name="Save").click()
    await expect(details.get_by_role("alert").first).to_contain_text("tenant acme")
    await page.get_by_role("link", name="Chat").click()
    await expect(page.locator("#view-chat").get_by_label("Tenant")).to_have_text("acme")
    await page.get_by_role("button", name="Make a key").click()
    await connected(page)
    await expect(page.get_by_label("Begins with").locator("option")).to_contain_text(["desk"])
    await page.reload()
    await expect(page.locator("#view-chat")).to_contain_text("Connected")
    assert [one for one in complaints if not MISTAKES.search(one)] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_prompts_are_put_pinned_and_deleted(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    details = await opened(page, world)
    prompts = details.locator("details", has=page.get_by_text("System prompts", exact=True))
    await prompts.get_by_label("Name").fill("desk")
    await prompts.get_by_label("Text").fill("You know the catalog: anvils, rope and glue. " * 3)
    await prompts.get_by_role("button", name="Put").click()
    row = prompts.get_by_role("row", name=re.compile("^desk"))
    await row.get_by_role("button", name="Pin").click()
    await expect(row.get_by_role("button", name="Unpin")).to_be_visible()
    shown = await told(admin, "/tenants/acme/prompts/desk")
    assert shown["pinned"]
    assert shown["blocks"] > 0
    await row.get_by_role("button", name="Text").click()
    await expect(prompts.get_by_label("Text", exact=True)).to_have_value(shown["text"])
    await row.get_by_role("button", name="Delete").click()
    await row.get_by_role("button", name="Really delete?").click()
    await expect(row).to_have_count(0)
    assert (await told(admin, "/tenants/acme/prompts"))["prompts"] == []


@pytest.mark.exhaustive
async def test_a_group_is_made_joined_and_deleted_once_it_is_empty(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await sign_in(page, world.admin_url, view="tenants")
    await page.get_by_label("New share group's id").fill("guild")
    await page.get_by_role("button", name="Create the group").click()
    details = page.locator("#view-tenants .details")
    await expect(details).to_contain_text("Delete the group")
    assert (await admin.patch("/tenants/acme", json={"share_group": "guild"})).is_success
    await details.get_by_role("button", name="Delete the group").click()
    await details.get_by_role("button", name="Really delete the group?").click()
    await expect(page.locator("#view-tenants > .news")).to_contain_text("member")
    assert (await admin.patch("/tenants/acme", json={"share_group": None})).is_success
    await details.get_by_role("button", name="Delete the group").click()
    await details.get_by_role("button", name="Really delete the group?").click()
    await expect(details).to_have_text("It is deleted.")
    assert (await admin.get("/groups/guild")).status_code == 404
    assert [one for one in complaints if not MISTAKES.search(one)] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_a_tenant_is_deleted_by_its_name(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    details = await opened(page, world, "umbra")
    name = details.get_by_label("Type umbra to delete it")
    await name.fill("acme")
    await details.get_by_role("button", name="Delete the tenant").click()
    await expect(details.get_by_role("alert").last).to_contain_text("not umbra")
    await name.fill("umbra")
    await details.get_by_role("button", name="Delete the tenant").click()
    await expect(details).to_have_text("It is deleted.", timeout=20_000)
    assert (await admin.get("/tenants/umbra")).status_code == 404
    await expect(page.get_by_role("button", name="umbra", exact=True)).to_have_count(0)


@pytest.mark.exhaustive
async def test_what_tenants_do_and_used_is_shown(page: Page, world: World, tmp_path: Path) -> None:
    for question in ("What is an anvil?", "What is an anvil worth?"):
        await world.client().responses.create(
            model=MODEL, input=question * 4, max_output_tokens=8, prompt_cache_retention="24h"
        )
    await world.metered("acme", 2, (await usage(world)))
    await put(world.stores.adapters, "acme", "support", b"weights" * 1_000_000)
    details = await opened(page, world)
    row = page.get_by_role("row", name=re.compile("^acme"))
    await expect(row).to_contain_text(re.compile(r"\d+ %"))
    await expect(details).to_contain_text("Tokens a day")
    await page.locator("#view-tenants h2").first.focus()
    await check_looks(page, "tenants", tmp_path)


async def usage(world: World) -> int:
    """Tokens that the engine has seen."""
    stats = await world.engine.stats()
    return stats.prompt_tokens + stats.output_tokens
