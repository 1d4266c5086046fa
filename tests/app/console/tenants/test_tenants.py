"""Tenants in the console: what an operator does there is done, and what is refused is told."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from playwright.async_api import Page, Route, expect

from tenants.usage.meter import UsageMeter
from tenants.usage.prices import PriceList, Prices
from tests.app.conftest import MODEL, World
from tests.app.console.looks import check_looks
from tests.app.console.signing_in import sign_in
from tests.app.console.tenants.visiting import forgive, link, listed, opened, told
from tests.tenants.adapters.putting import put

NAMES = (
    *("Anvil Works", "Borealis Law", "Cedar Clinics", "Dune Travel", "Elm Insurance", "Fjord Bank"),
    *(
        "Garnet Law",
        "Harbor Freight",
        "Iris Optics",
        "Juniper Foods",
        "Kestrel Air",
        "Lumen Energy",
    ),
    *("Maple Schools", "Nimbus Hosting", "Orchard Law", "Pike Logistics", "Quartz Mining"),
)


@pytest.fixture
def prices() -> PriceList:
    return PriceList(model=Prices(currency="EUR", input=300, cached=30, written=375, output=1500))


async def test_a_tenant_is_made_and_its_key_shown_once(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await listed(page, world)
    await page.get_by_role("button", name="New tenant").click()
    dialog = page.get_by_role("dialog", name="New tenant")
    await dialog.get_by_label("Id").fill("zeta")
    await dialog.get_by_label("Name, for people").fill("Zeta & <b>Sons</b>")
    await dialog.get_by_role("button", name="Create the tenant").click()
    shown = page.get_by_label("The new API key, shown once")
    await expect(shown).to_be_focused()
    await expect(page.get_by_role("status")).to_have_text("The tenant zeta is made.")
    assert page.url.endswith("#tenants/zeta/keys")
    key = await shown.input_value()
    width = "(one) => [one.scrollWidth, one.clientWidth, one.scrollHeight, one.clientHeight]"
    wide, has_width, high, has_height = await shown.evaluate(width)
    assert wide <= has_width
    assert high <= has_height, "the whole key is seen"
    headers = {"authorization": f"Bearer {key}"}
    assert (await admin.get(f"{world.base_url}/v1/models", headers=headers)).is_success
    assert (await told(admin, "/audit?owner=zeta"))["entries"][0]["action"] == "tenant.create"
    await page.get_by_role("button", name="I have it").click()
    await expect(shown).to_have_count(0)
    await link(page, "‹ Tenants").click()
    row = page.get_by_role("row", name=re.compile("^zeta"))
    await expect(row).to_contain_text("Zeta & <b>Sons</b>")
    await link(page, "zeta").click()
    await expect(page.get_by_role("heading", name="zeta")).to_be_focused()
    await expect(shown).to_have_count(0)


async def test_a_tenant_and_a_key_are_made_by_keyboard_alone(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await listed(page, world)
    await expect(link(page, "acme")).to_be_visible()
    await page.get_by_role("button", name="New tenant").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Id")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="New tenant")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Id")).to_be_focused()
    await page.keyboard.type("zeta")
    await page.keyboard.press("Enter")
    shown = page.get_by_label("The new API key, shown once")
    await expect(shown).to_be_focused()
    first = await shown.input_value()
    for name in ("Copy API key", "Chat with it", "I have it"):
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("button", name=name)).to_be_focused()
    for name in ("Cells and requests", "Delete", "Suspend", "New key"):
        while await page.evaluate("document.activeElement.textContent") != name:
            await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("What it is for")).to_be_focused()
    await page.keyboard.type("robot")
    await page.keyboard.press("Tab")
    await page.keyboard.type("3")
    await page.keyboard.press("Enter")
    await expect(shown).not_to_have_value(first)
    await expect(shown).to_be_focused()
    robot, _ = (await told(admin, "/tenants/zeta/keys"))["keys"]
    assert robot["name"] == "robot"
    assert robot["id"] in await shown.input_value()


async def test_a_record_is_changed_and_what_is_refused_is_told_at_its_field(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    panel = await opened(page, world)
    limit = panel.get_by_label("Requests per minute", exact=True)
    await limit.fill("Infinity")
    await panel.get_by_role("button", name="Save").click()
    await expect(panel.get_by_role("alert").first).to_contain_text("Requests per minute:")
    await expect(limit).to_be_focused()
    await expect(limit).to_have_attribute("aria-invalid", "true")
    await limit.fill("7")
    await panel.get_by_label("Weight").fill("2.5")
    await panel.get_by_label("Unknown fields").select_option("ignore")
    await panel.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_have_text("The record is saved.")
    await expect(panel.get_by_label("Weight")).to_have_value("2.5")
    tenant = await told(admin, "/tenants/acme")
    assert (tenant["weight"], tenant["limits"]["requests_per_minute"]) == (2.5, 7)
    assert tenant["unknown_fields"] == "ignore"
    await link(page, "Audit").click()
    await expect(panel).to_contain_text("requests_per_minute: 7")
    await page.go_back()
    await expect(limit).to_have_value("7")
    await limit.fill("")
    await panel.get_by_label("Unknown fields").select_option("")
    await panel.get_by_role("button", name="Save").click()
    await expect(limit).to_have_value("")
    tenant = await told(admin, "/tenants/acme")
    assert tenant["limits"]["requests_per_minute"] is None
    assert tenant["unknown_fields"] is None
    forgive(complaints)


async def test_a_tenant_is_suspended_and_served_again(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await opened(page, world, "keys")
    await page.get_by_role("button", name="Suspend").click()
    await expect(page.locator(".badge")).to_have_text("suspended")
    await expect(page.get_by_role("button", name="Resume")).to_be_focused()
    assert (await told(admin, "/tenants/acme"))["status"] == "disabled"
    await link(page, "‹ Tenants").click()
    await expect(page.get_by_role("row", name=re.compile("^acme"))).to_contain_text("suspended")
    await page.get_by_label("Status").select_option("suspended")
    await expect(link(page, "umbra")).to_have_count(0)
    await link(page, "acme").click()
    await page.get_by_role("button", name="Resume").click()
    await expect(page.locator(".badge")).to_have_text("active")
    assert (await told(admin, "/tenants/acme"))["status"] == "active"


@pytest.mark.exhaustive
async def test_what_somebody_else_has_changed_is_not_overwritten(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    panel = await opened(page, world)
    await admin.patch("/tenants/acme", json={"weight": 3})
    await panel.get_by_label("Weight").fill("4")
    await panel.get_by_role("button", name="Save").click()
    await expect(panel.get_by_role("alert").first).to_contain_text("has changed")
    assert (await told(admin, "/tenants/acme"))["weight"] == 3
    forgive(complaints)


@pytest.mark.exhaustive
async def test_what_was_opened_last_is_all_that_is_shown(page: Page, world: World) -> None:
    released = asyncio.Event()

    async def late(route: Route) -> None:
        await released.wait()
        await route.continue_()

    await page.route("**/admin/tenants/acme/keys", late)
    await sign_in(page, world.admin_url, view="tenants/acme/keys")
    view = page.locator("#view-tenants .tenant")
    await expect(view).to_contain_text("Loading keys")
    await page.goto(f"{world.admin_url}/console/#tenants/umbra/keys")
    await expect(view.get_by_role("row", name=re.compile("^default"))).to_be_visible()
    async with page.expect_response("**/admin/tenants/acme/keys"):
        released.set()
    await page.goto(f"{world.admin_url}/console/#tenants/umbra/record")
    await expect(view.get_by_label("Weight")).to_be_visible()
    assert await view.get_by_role("navigation").get_by_role("link").all_inner_texts() == [
        *("Record", "API keys", "System prompts", "Adapters", "Usage", "Audit")
    ]
    await expect(view.locator(".panel")).to_have_count(1)
    await expect(view).not_to_contain_text("acme")


@pytest.mark.exhaustive
async def test_tenants_are_there_once_the_store_is(
    page: Page, world: World, complaints: list[str]
) -> None:
    with world.outage():
        await sign_in(page, world.admin_url, view="tenants")
        alert = page.locator("#view-tenants").get_by_role("alert")
        await expect(alert).to_contain_text("not available")
    await expect(link(page, "umbra")).to_be_visible()
    await expect(alert).to_have_text("")
    await page.goto(f"{world.admin_url}/console/#tenants/acme%23x")
    await expect(page.get_by_role("alert").filter(has_text="no tenant's id")).to_be_visible()
    await link(page, "‹ Tenants").click()
    await expect(link(page, "umbra")).to_be_visible()
    forgive(complaints, re.compile("503"))


@pytest.mark.exhaustive
async def test_a_tab_that_did_not_come_is_tried_again(
    page: Page, world: World, complaints: list[str]
) -> None:
    await page.route("**/admin/tenants/acme/keys", lambda route: route.fulfill(status=503))
    panel = await opened(page, world, "keys")
    await expect(panel.get_by_role("alert")).to_have_text("Service Unavailable")
    await page.unroute("**/admin/tenants/acme/keys")
    await panel.get_by_role("button", name="Try again").click()
    await expect(panel.get_by_role("row", name=re.compile("^default"))).to_be_visible()
    await page.goto(f"{world.admin_url}/console/#tenants/nobody/keys")
    await expect(page.get_by_role("alert").filter(has_text="nobody")).to_have_count(2)
    forgive(complaints, re.compile("404|503"))


@pytest.mark.exhaustive
async def test_a_tenant_is_deleted_by_its_name(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    await opened(page, world, "record", "umbra")
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete umbra")
    name = dialog.get_by_label("Type umbra to delete it")
    await name.fill("acme")
    await dialog.get_by_role("button", name="Delete the tenant").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("not umbra")
    await name.fill("umbra")
    await dialog.get_by_role("button", name="Delete the tenant").click()
    await expect(page.get_by_role("status")).to_contain_text("umbra is deleted.")
    await expect(link(page, "acme")).to_be_visible()
    await expect(link(page, "umbra")).to_have_count(0)
    assert (await admin.get("/tenants/umbra")).status_code == 404


@pytest.mark.exhaustive
async def test_what_tenants_do_and_used_is_shown(page: Page, world: World, tmp_path: Path) -> None:
    for question in ("What is an anvil?", "What is an anvil worth?"):
        await world.client().responses.create(
            model=MODEL, input=question * 4, max_output_tokens=8, prompt_cache_retention="24h"
        )
    await world.metered("acme", 2, (await usage(world)))
    await put(world.stores.adapters, "acme", "support", b"weights" * 1_000_000)
    await world.register("acme", "desk", "You are the support desk of Acme. Be brief. " * 6)
    await crowd(world)
    await listed(page, world)
    row = page.get_by_role("row", name=re.compile("^acme"))
    await expect(row).to_contain_text(re.compile(r"\d+ %"))
    await page.get_by_label("Search").focus()
    await check_looks(page, "tenants", tmp_path)
    view = page.locator("#view-tenants")
    for tab in ("record", "keys", "prompts/desk", "adapters/support", "usage", "audit"):
        await page.goto(f"{world.admin_url}/console/#tenants/acme/{tab}")
        await expect(view.locator("[aria-busy=true]")).to_have_count(0)
        await check_looks(page, f"tenant-{tab.partition('/')[0]}", tmp_path)
    await expect(view.locator(".now")).to_contain_text(re.compile(r"Found this month\s*\d+ %"))
    for address in (
        "@guild",
        "@guild/prompts",
        "@guild/adapters",
        "*/audit",
        "*/tokens",
        "umbra/usage",
    ):
        await page.goto(f"{world.admin_url}/console/#tenants/{address}")
        await expect(view.locator("[aria-busy=true]")).to_have_count(0)
        await check_looks(page, "tenant-other", tmp_path)
    await page.goto(f"{world.admin_url}/console/#tenants")
    await page.get_by_role("button", name="New tenant").click()
    await check_looks(page, "tenant-new", tmp_path)


async def crowd(world: World) -> None:
    """More tenants, as a service has them after a month."""
    await world.stores.groups.create("guild", "The guild of lawyers")
    meter, seeded = UsageMeter(world.redis), random.Random(30)
    for place, name in enumerate(NAMES):
        tenant = name.lower().replace(" ", "-")
        group = "guild" if "Law" in name else None
        status = "disabled" if place == 7 else "active"
        changes = {"share_group": group, "status": status}
        await world.stores.tenants.create_tenant(
            tenant, name, edit=lambda one, to=changes: replace(one, **to)
        )
        asked = seeded.randrange(20_000, 9_000_000)
        meter.add(
            tenant,
            requests=asked // 1500,
            prompt_tokens=asked,
            cached_tokens=int(asked * seeded.uniform(0.4, 0.95)),
            output_tokens=asked // 9,
            cost_nanos=asked * 900,
        )
    await meter.flush()


async def usage(world: World) -> int:
    """Tokens that the engine has seen."""
    stats = await world.engine.stats()
    return stats.prompt_tokens + stats.output_tokens
