"""The list of tenants: as quick with thousands as with a few, and what was looked for is kept."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.app.conftest import World
from tests.app.console.looks import check_page
from tests.app.console.signing_in import sign_in

COUNT = 5000
BUSY = ["tenant-4321", "tenant-0007"]
MOST_REQUESTS = 12
MOST_ROWS = 80


def record(number: int) -> dict[str, Any]:
    return {
        "id": f"tenant-{number:04}",
        "name": f"Customer {number}",
        "status": "disabled" if number % 100 == 3 else "active",
        "share_group": "law" if number % 10 == 1 else None,
        "limits": {"hard_budget_micros": 9_000_000} if number == 7 else {},
    }


def usage(number: int) -> dict[str, Any]:
    tokens = {"prompt_tokens": 100, "cached_tokens": 75, "output_tokens": 10}
    return {"tenant": f"tenant-{number:04}", "requests": 2, "cost": f"{number}.500000000", **tokens}


class Store:
    """Thousands of tenants, as the service tells of them; counts what it is asked."""

    def __init__(self, count: int = COUNT) -> None:
        self.records = [record(number) for number in range(count)]
        self.busy = list(BUSY)
        self.asked: list[str] = []

    async def serve(self, page: Page) -> None:
        await page.route(re.compile(r"/admin/(tenants\?|groups\?|live|usage\?)"), self._answer)

    async def _answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        self.asked.append(url.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        await route.fulfill(status=200, body=json.dumps(self._told(url.path, query)))

    def _told(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        if path.endswith("/groups"):
            return {"groups": [{"id": "law", "name": "Lawyers"}], "next": None}
        if path.endswith("/live"):
            return {"tenants": [{"id": one, "streams": 3, "running": 1} for one in self.busy]}
        if path.endswith("/usage"):
            lines = [usage(number) for number in range(len(self.records))]
            return {"currency": "EUR", "usage": lines, "next": None}
        limit = int(query["limit"])
        some = [one for one in self.records if one["id"] > query.get("after", "")]
        return {"tenants": some[:limit], "next": some[limit - 1]["id"] if some[limit:] else None}


@pytest.fixture
async def store(page: Page) -> Store:
    store = Store()
    await store.serve(page)
    return store


async def opened(
    page: Page, world: World, said: str = "5,000 tenants and 1 share group"
) -> Locator:
    await sign_in(page, world.admin_url, view="tenants")
    view = page.locator("#view-tenants")
    await expect(view).to_contain_text(f"{said}, ")
    await expect(view.locator("tfoot")).to_contain_text(re.compile(r"\d\.\d\d$"))
    await expect(view).to_contain_text(re.compile(", [2-9] active now"))
    return view


def rows(view: Locator) -> Locator:
    return view.locator("tbody tr:not([aria-hidden])")


def first(view: Locator) -> Locator:
    return rows(view).first


@pytest.mark.exhaustive
async def test_thousands_are_told_by_a_handful_of_requests_and_rows(
    page: Page, world: World, store: Store
) -> None:
    view = await opened(page, world)
    assert len(store.asked) <= MOST_REQUESTS
    assert store.asked.count("/admin/usage") == 1
    assert await rows(view).count() <= MOST_ROWS
    assert await view.get_by_role("table").get_attribute("aria-rowcount") == str(COUNT + 1 + 3)
    texts = await rows(view).locator("td:first-child").all_inner_texts()
    assert texts[:3] == ["tenant-0007", "tenant-4321", "@law"], "those that are active come first"
    cells = await view.locator("tfoot td").all_inner_texts()
    assert cells[0] == "Total"
    assert cells[4:7] == ["6", "2", "0"]
    assert cells[-4:] == ["75 %", "10,000", "550,000", "12,500,000.00"]
    await expect(first(view)).to_contain_text("7.50 of 9.00")

    region = view.get_by_role("region", name="All tenants")
    await region.evaluate("(one) => { one.scrollTop = one.scrollHeight; }")
    last = rows(view).filter(has_text="tenant-4999")
    await expect(last).to_be_in_viewport()
    assert await last.get_attribute("aria-rowindex") == str(2 + COUNT + 1)
    assert await rows(view).count() <= MOST_ROWS
    for width in (360, 1440):
        await page.set_viewport_size({"width": width, "height": 800})
        await check_page(page, width)


async def test_tenants_are_searched_filtered_and_sorted_by_any_column(
    page: Page, world: World, store: Store
) -> None:
    view = await opened(page, world)
    await page.get_by_label("Search").fill("CUSTOMER 42")
    await expect(view).to_contain_text("111 of 5,000 tenants")
    await page.get_by_label("Search").fill("tenant-43")
    await expect(view).to_contain_text("100 of 5,000 tenants")
    await page.get_by_label("Status").select_option("suspended")
    await expect(rows(view)).to_have_count(1)
    await expect(first(view)).to_contain_text(
        re.compile(r"tenant-4303\s*Customer 4303\s*suspended")
    )
    await page.get_by_label("Share group").select_option("law")
    await expect(view.get_by_role("heading", name="No tenant is like that")).to_be_visible()
    await page.get_by_role("button", name="Show all").click()
    await expect(page.get_by_label("Search")).to_have_value("")
    await page.get_by_label("Active now").check()
    await expect(rows(view)).to_have_count(2)
    await page.get_by_label("Active now").uncheck()

    spent = page.get_by_role("button", name="Spent EUR")
    await spent.click()
    await expect(first(view)).to_contain_text("tenant-4999")
    heading = view.get_by_role("columnheader", name="Spent EUR")
    await expect(heading).to_have_attribute("aria-sort", "descending")
    await spent.click()
    await expect(first(view)).to_contain_text(re.compile("@law|tenant-0000"))
    await spent.click()
    await expect(first(view)).to_contain_text("tenant-0007")
    await expect(heading).to_have_attribute("aria-sort", "none")
    await page.get_by_role("button", name="Name", exact=True).click()
    await expect(first(view)).to_contain_text("Customer 0")


@pytest.mark.exhaustive
async def test_what_was_looked_for_is_there_again_behind_a_page_and_a_reload(
    page: Page, world: World, store: Store, complaints: list[str]
) -> None:
    view = await opened(page, world)
    await page.get_by_label("Search").fill("tenant-4")
    await page.get_by_label("Share group").select_option("law")
    await expect(view).to_contain_text("100 of 5,000 tenants")
    region = view.get_by_role("region", name="All tenants")
    await region.evaluate("(one) => { one.scrollTop = 2000; }")
    await page.get_by_role("link", name="tenant-4601").click()
    # The service has none of them, so the page can only say so.
    await expect(page.get_by_role("alert").filter(has_text="tenant-4601")).to_have_count(2)
    await page.go_back()
    await expect(page.get_by_role("link", name="tenant-4601")).to_be_in_viewport()
    await page.reload()
    await expect(view).to_contain_text("100 of 5,000 tenants")
    await expect(page.get_by_label("Search")).to_have_value("tenant-4")
    await expect(page.get_by_label("Share group")).to_have_value("law")
    assert [one for one in complaints if "404" not in one] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_rows_do_not_move_away_from_who_is_about_to_choose_one(
    page: Page, world: World, store: Store
) -> None:
    view = await opened(page, world)
    await rows(view).nth(1).hover()
    store.busy = ["tenant-0009"]
    await expect(rows(view).nth(1)).to_contain_text(
        re.compile(r"tenant-4321.*law\s*0\s*0\s*0", re.DOTALL)
    )
    await page.get_by_label("Search").hover()
    await expect(first(view)).to_contain_text("tenant-0009")


async def test_a_service_without_tenants_says_what_one_is(
    page: Page, world: World, store: Store
) -> None:
    store.records, store.busy = [], []
    await page.route(
        "**/admin/groups?*", lambda route: route.fulfill(body='{"groups": [], "next": null}')
    )
    await sign_in(page, world.admin_url, view="tenants")
    await expect(page.get_by_role("heading", name="No tenants yet")).to_be_visible()
    await check_page(page, 1440)
