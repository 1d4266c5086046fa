"""What a tenant has, in the console: keys, prompts and groups; and what operators have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.app.conftest import World
from tests.app.console.chat.chatting import connected
from tests.app.console.signing_in import sign_in
from tests.app.console.tenants.visiting import forgive, link, listed, opened, told


@pytest.mark.exhaustive
async def test_keys_are_made_rotated_and_revoked(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    async def keys() -> Mapping[str, Any]:
        found = (await told(admin, "/tenants/acme/keys"))["keys"]
        return {key["id"]: key for key in found if key["name"] == "robot"}

    panel = await opened(page, world, "record")
    await page.get_by_role("button", name="New key").click()
    await page.get_by_label("What it is for").fill("robot")
    await page.get_by_label("Days that it lasts").fill("3")
    await page.get_by_role("button", name="Make the key").click()
    shown = page.get_by_label("The new API key, shown once")
    first = await shown.input_value()
    [made] = (await keys()).values()
    assert made["id"] in first
    assert made["expires_at"]
    assert page.url.endswith("#tenants/acme/keys")
    row = panel.get_by_role("row", name=re.compile("^robot"))
    await row.get_by_role("button", name="Rotate").click()
    await expect(shown).not_to_have_value(first)
    [replaced] = [key for key in (await keys()).values() if key["replaced_by"]]
    assert replaced["id"] == made["id"]
    fresh = replaced["replaced_by"]
    table = panel.get_by_role("region", name="API keys")
    await expect(
        table.get_by_role("row", name=re.compile(f"{made['id']}.*replaced by"))
    ).to_be_visible()
    row = table.get_by_role("row", name=re.compile(f"^robot {fresh}"))
    await row.get_by_role("button", name="Revoke").click()
    await row.get_by_role("button", name="Really revoke?").click()
    await expect(page.get_by_role("status")).to_contain_text("The key robot is revoked.")
    await expect(row.get_by_role("button")).to_have_count(0)
    assert not (await keys()).get(fresh, {"live": False})["live"]
    await link(page, "Audit").click()
    await expect(panel).to_contain_text("key.revoke")


async def test_a_new_key_is_chatted_with(page: Page, world: World) -> None:
    await opened(page, world, "keys", "umbra")
    await page.get_by_role("button", name="New key").click()
    await page.get_by_label("What it is for").fill("console")
    await page.get_by_role("button", name="Make the key").click()
    await page.get_by_role("button", name="Chat with it").click()
    await expect(page.locator("#view-chat")).to_contain_text("Connected")


@pytest.mark.exhaustive
async def test_admin_tokens_are_made_and_revoked(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await listed(page, world)
    await link(page, "Admin tokens").click()
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Who or what it is for").fill("probe")
    await page.get_by_label("Tenant that it is held to").fill("acme")
    await page.get_by_role("button", name="Make the token").click()
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
async def test_who_is_held_to_a_tenant_sees_it_and_chats_as_it(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    token = {"name": "bob", "role": "admin", "tenant": "acme"}
    made = (await admin.post("/tokens", json=token)).json()
    await world.register("acme", "desk", "You are at the desk. " * 4)
    await sign_in(page, world.admin_url, made["admin_token"], view="wall")
    view = page.locator("#view-tenants")
    panel = view.locator(".panel")
    await expect(view.get_by_role("link", name="Usage")).to_be_visible()
    assert await page.locator("header").get_by_role("link").all_inner_texts() == ["Tenants", "Chat"]
    for absent in ("Audit", "Delete", "Suspend", "umbra"):
        await expect(view).not_to_contain_text(absent)
    await page.goto(f"{world.admin_url}/console/#tenants/umbra/keys")
    await expect(view.get_by_role("heading", name="acme")).to_be_visible()
    await expect(view).not_to_contain_text("umbra")
    await panel.get_by_label("Weight").fill("4")
    await panel.get_by_role("button", name="Save").click()
    await expect(panel.get_by_role("alert").first).to_contain_text("tenant acme")
    await page.get_by_role("link", name="Chat").click()
    await expect(page.locator("#view-chat").get_by_label("Tenant")).to_have_text("acme")
    await page.get_by_role("button", name="Make a key").click()
    await connected(page)
    await expect(page.get_by_label("Begins with").locator("option")).to_contain_text(["desk"])
    await page.reload()
    await expect(page.locator("#view-chat")).to_contain_text("Connected")
    forgive(complaints)


@pytest.mark.exhaustive
async def test_prompts_are_put_pinned_activated_and_deleted(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    panel = await opened(page, world, "prompts")
    await expect(panel).to_contain_text("No prompts")
    await panel.get_by_role("button", name="New prompt").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("desk")
    text = "You know the catalog: anvils, rope and glue. " * 3
    await dialog.get_by_label("Text").fill(text)
    await dialog.get_by_role("button", name="Put it").click()
    seen = panel.get_by_role("region", name="Text of desk")
    await expect(seen).to_have_text(text)
    assert page.url.endswith("#tenants/acme/prompts/desk")
    prompts = panel.get_by_role("region", name="System prompts")
    row = prompts.get_by_role("row", name=re.compile("^desk"))
    await row.get_by_role("button", name="Pin").click()
    await expect(row.get_by_role("button", name="Unpin")).to_be_visible()
    shown = await told(admin, "/tenants/acme/prompts/desk")
    assert shown["pinned"]
    assert shown["blocks"] > 0

    await panel.get_by_role("button", name="New version").click()
    await expect(dialog.get_by_label("Text")).to_have_value(text)
    await dialog.get_by_label("Text").fill("You know nothing.")
    await dialog.get_by_role("button", name="Put it").click()
    versions = panel.get_by_role("region", name="Versions of desk")
    await expect(versions.get_by_role("row")).to_have_count(3)
    await expect(seen).to_have_text("You know nothing.")
    await expect(row).to_contain_text(re.compile(r"desk\s*2"))
    first = versions.get_by_role("row", name=re.compile("^1"))
    await first.get_by_role("link", name="Text").click()
    await expect(seen).to_have_text(text)
    await page.reload()
    await expect(seen).to_have_text(text)
    await first.get_by_role("button", name="Activate").click()
    await expect(first).to_contain_text(re.compile(r"1\s*yes"))
    await expect(row).to_contain_text(re.compile(r"desk\s*1"))
    assert (await told(admin, "/tenants/acme/prompts/desk"))["version"] == 1
    await row.get_by_role("button", name="Delete").click()
    await row.get_by_role("button", name="Really delete?").click()
    await expect(panel).to_contain_text("No prompts")
    await expect(seen).to_have_count(0)
    assert (await told(admin, "/tenants/acme/prompts"))["prompts"] == []


@pytest.mark.exhaustive
async def test_a_group_is_made_joined_and_deleted_once_it_is_empty(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    view = await listed(page, world)
    await page.get_by_role("button", name="New group").click()
    await page.get_by_label("Id").fill("guild")
    await page.get_by_role("button", name="Create the group").click()
    await expect(page.get_by_role("heading", name="@guild")).to_be_visible()
    await expect(view.locator(".panel")).to_contain_text("No members")
    assert (await admin.patch("/tenants/acme", json={"share_group": "guild"})).is_success
    await page.reload()
    await expect(link(page, "acme")).to_be_visible()
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Type @guild to delete it").fill("@guild")
    await dialog.get_by_role("button", name="Delete the group").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("member")
    await dialog.get_by_role("button", name="Cancel").click()
    await link(page, "acme").click()
    await expect(link(page, "guild")).to_have_attribute("href", "#tenants/@guild")
    assert (await admin.patch("/tenants/acme", json={"share_group": None})).is_success
    await page.go_back()
    await page.get_by_role("button", name="Delete").click()
    await dialog.get_by_label("Type @guild to delete it").fill("@guild")
    await dialog.get_by_role("button", name="Delete the group").click()
    await expect(page.get_by_role("status")).to_contain_text("@guild is deleted.")
    await expect(link(page, "umbra")).to_be_visible()
    assert (await admin.get("/groups/guild")).status_code == 404
    forgive(complaints)
