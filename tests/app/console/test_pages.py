"""Every view: legible by anybody, at any width, in the dark, and shown in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.app.conftest import ADMIN_TOKEN, MODEL, World
from tests.app.console.looks import check_looks, check_page
from tests.app.console.signing_in import sign_in


async def use(world: World, admin: httpx.AsyncClient) -> None:
    """Some answers of two tenants, of which one has a prompt pinned and one leases what it used."""
    said = "You know the catalog: anvils, rope and glue, by size and by colour. "
    await world.register("acme", "desk", said * 3)
    assert (await admin.post("/tenants/acme/prompts/desk/pin")).is_success
    for tenant, ttl in (("acme", None), ("umbra", {"ttl": "30m"})):
        for question in ("What is an anvil?", "How long is the rope?", "Which glue?"):
            await world.client(tenant).responses.create(
                model=MODEL, input=said + question, max_output_tokens=8, prompt_cache_options=ttl
            )


@pytest.mark.exhaustive
async def test_the_wall_shuts_nobody_out(
    page: Page, world: World, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    await sign_in(page, world.admin_url)
    await expect(page.locator("#view-wall")).to_contain_text("No request is there")
    await use(world, admin)
    requests = page.get_by_role("listbox", name="Requests").get_by_role("option")
    await requests.nth(1).click()
    await expect(page.locator(".told")).to_contain_text("broke at token")
    await check_looks(page, "wall", tmp_path)


@pytest.mark.parametrize("width", [360, 1440])
async def test_a_first_visit(page: Page, world: World, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 800})
    await page.goto(f"{world.base_url}/console")
    await expect(page.get_by_label("API key or admin token")).to_be_focused()
    await check_page(page, width)


@pytest.mark.exhaustive
async def test_an_operator_s_token_is_not_for_the_tenants_port(
    page: Page, world: World, complaints: list[str]
) -> None:
    await sign_in(page, world.base_url, ADMIN_TOKEN)
    await expect(page.get_by_role("alert")).to_have_text(re.compile("operators"))
    await page.close()
    assert [one for one in complaints if "404" not in one] == []
    complaints.clear()
