"""An operator who looks at tenants, and what the service knows of them."""

from __future__ import annotations

import re
from typing import Any

import httpx
from playwright.async_api import Locator, Page, expect

from tests.app.conftest import World
from tests.app.console.signing_in import sign_in

MISTAKES = re.compile(r"status of 4\d\d")


async def opened(page: Page, world: World, tab: str = "record", tenant: str = "acme") -> Locator:
    """A tab of a tenant's page, and what is in it."""
    await sign_in(page, world.admin_url, view=f"tenants/{tenant}/{tab}")
    has_come = "#view-tenants :is(.panel[aria-busy=false], .panel [aria-busy=false])"
    await expect(page.locator(has_come).first).to_be_visible()
    return page.locator("#view-tenants .panel")


async def listed(page: Page, world: World, address: str = "tenants") -> Locator:
    """The list, or what is shown at another address, once it is there."""
    await sign_in(page, world.admin_url, view=address)
    return page.locator("#view-tenants")


def link(page: Page, name: str) -> Locator:
    return page.locator("#view-tenants").get_by_role("link", name=name, exact=True)


async def told(admin: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await admin.get(path)
    assert answer.is_success
    document: dict[str, Any] = answer.json()
    return document


def forgive(complaints: list[str], mistakes: re.Pattern[str] = MISTAKES) -> None:
    """The browser tells of what was refused on purpose, and of nothing else."""
    assert [one for one in complaints if not mistakes.search(one)] == []
    complaints.clear()
