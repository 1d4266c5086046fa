"""The wall's list of requests: filters, addresses, and from a tenant's cells to its requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect

from tests.app.conftest import MODEL, World
from tests.app.console.looks import check_looks
from tests.app.console.signing_in import sign_in

SAID = "what does the catalog say of anvils, and of rope? " * 6


async def ask(world: World, tenant: str, text: str = SAID) -> None:
    await world.client(tenant).responses.create(model=MODEL, input=text, max_output_tokens=3)


@pytest.fixture
async def rows(page: Page, world: World) -> Locator:
    """The rows of the list, of three requests: two of acme's, and one of umbra's before these."""
    await sign_in(page, world.admin_url, view="wall")
    await expect(page.locator(".legend")).to_contain_text("free 160")
    await ask(world, "umbra")
    await ask(world, "acme")
    await ask(world, "acme")
    rows = page.get_by_role("grid", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(3)
    return rows


async def test_a_row_tells_when_who_and_how_much_was_found(page: Page, rows: Locator) -> None:
    again = rows.first
    await expect(again).to_contain_text(re.compile(r"\d\d:\d\d:\d\d.*acme.*9\d %.*finished"))
    await expect(rows.nth(1)).to_contain_text(re.compile(r"acme\s*0 %"))
    shares = page.locator(".share b")
    widths = [await shares.nth(at).evaluate("(bar) => bar.offsetWidth") for at in range(2)]
    assert widths[0] > 80
    assert widths[1] == 0
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await again.get_by_role("button", name="Copy resp_").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert await again.get_attribute("data-id") == copied
    assert copied not in await again.inner_text(), "it is shortened"
    await expect(again).to_have_attribute("aria-selected", "false")


@pytest.mark.exhaustive
async def test_filters_leave_those_that_are_meant(
    page: Page, rows: Locator, tmp_path: Path
) -> None:
    await page.get_by_label("What was found ended").select_option("prompt_ends")
    await expect(rows).to_have_count(1)
    await expect(page.locator(".leaning")).to_contain_text("1 of 3 requests")
    await page.locator("[name=state]").select_option("running")
    await expect(rows).to_have_count(0)
    await expect(page.locator(".told")).to_have_text("No request is like that.")
    await check_looks(page, "none", tmp_path)
    await page.locator("[name=state]").select_option("")
    await page.get_by_label("What was found ended").select_option("")
    await expect(rows).to_have_count(3)
    await page.get_by_label("Tenant").select_option("umbra")
    await expect(rows).to_have_count(1)
    assert page.url.endswith("#wall/umbra")
    await page.get_by_role("link", name="Show all").click()
    await expect(rows).to_have_count(3)


async def test_an_address_names_a_tenant_and_a_request(
    page: Page, world: World, rows: Locator
) -> None:
    await rows.nth(1).click()
    await expect(page.locator(".told")).to_contain_text("of acme, finished")
    assert page.url.endswith("#wall"), "who looks at all goes on to"
    await page.get_by_role("link", name="Only acme's cells and requests").last.click()
    await expect(rows).to_have_count(2)
    chosen = rows.nth(1)
    await expect(chosen).to_have_attribute("aria-selected", "true")
    name = await chosen.get_attribute("data-id")
    assert page.url.endswith(f"#wall/acme/{name}")
    await page.reload()
    await expect(rows).to_have_count(2)
    await expect(chosen).to_have_attribute("aria-selected", "true")
    await expect(page.locator(".chain")).to_be_visible()
    await page.get_by_role("grid", name="Requests").focus()
    await page.keyboard.press("ArrowUp")
    await expect(rows.first).to_have_attribute("aria-selected", "true")
    assert page.url.endswith(f"#wall/acme/{await rows.first.get_attribute('data-id')}")
    await page.get_by_role("link", name="acme's record").last.click()
    await expect(page.locator("#view-tenants")).to_be_visible()
    assert page.url.endswith("#tenants/acme")


async def test_a_tenants_cells_lead_to_its_requests_and_back(page: Page, rows: Locator) -> None:
    picture = page.get_by_role("img", name="KV blocks")
    await picture.focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".detail")).to_contain_text("Block 0 of umbra")
    await page.get_by_role("link", name="Only umbra's cells and requests").click()
    await expect(rows).to_have_count(1)
    await expect(page.get_by_label("Tenant")).to_have_value("umbra")
    await page.go_back()
    await expect(rows).to_have_count(3)
    await expect(page.get_by_label("Tenant")).to_have_value("")
