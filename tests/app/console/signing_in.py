"""The first step in the console."""

from __future__ import annotations

from playwright.async_api import Page

from tests.app.conftest import ADMIN_TOKEN


async def sign_in(page: Page, url: str, token: str = ADMIN_TOKEN, view: str = "") -> None:
    """Open the console of a port, at a view, and give the token or key."""
    await page.goto(f"{url}/console/{view and '#' + view}")
    await page.get_by_label("API key or admin token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
