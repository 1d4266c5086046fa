"""An empty wall shows itself, if one asks it to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import World
from tests.app.console.keeping import PICTURES, is_updating
from tests.app.console.looks import check_looks
from tests.app.console.signing_in import sign_in
from tests.app.pooled_engine import PooledEngine
from tests.engine.clock import at_a_models_pace

NUM_BLOCKS = 480
SHARED = re.compile(r"shared [1-9]")


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer, NUM_BLOCKS)
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.exhaustive
async def test_one_button_shows_sharing_and_all_of_it_goes(
    page: Page, world: World, engine: PooledEngine, tmp_path: Path
) -> None:
    world.app.state.service.demonstration.beat_seconds = 4.0
    at_a_models_pace(engine.cores[-1], 0.04)
    await sign_in(page, world.admin_url, view="wall")
    banner = page.get_by_role("region", name="Demonstration")
    await expect(banner).to_contain_text("No blocks are used yet.")
    await check_looks(page, "empty", tmp_path)
    await page.set_viewport_size({"width": 1440, "height": 900})
    await banner.get_by_role("button", name="Show me").click()
    await expect(banner).to_contain_text("A demonstration")
    await expect(banner.get_by_role("status")).to_contain_text("Sharing: two more of demo-ana's")
    await expect(page.locator(".legend")).to_contain_text(SHARED)
    rows = page.locator(".requests tbody tr")
    await expect(rows.filter(has_text="running")).to_have_count(2)
    await rows.filter(has_text="running").last.click()
    await expect(page.locator(".told")).to_contain_text("demo-ana, running")
    await page.emulate_media(color_scheme="light")
    folder = PICTURES if is_updating() else tmp_path
    await page.screenshot(path=folder / "console-demonstration-1440.png", full_page=True)
    await check_looks(page, "captions", tmp_path)
    await expect(banner.get_by_role("status")).to_contain_text("Pressure")
    await expect(rows.filter(has_text=re.compile("preempted|waiting"))).not_to_have_count(0)
    await expect(banner.get_by_role("status")).to_contain_text("An eviction")
    await page.get_by_label("What was found ended").select_option("evicted")
    await rows.first.click()
    told = page.locator(".told")
    await expect(told).to_contain_text("demo-cleo")
    await expect(told).to_contain_text("evicted by a deletion")
    await expect(banner.get_by_role("status")).to_contain_text("That was it")
    await expect(page.locator(".legend")).to_contain_text(f"free {NUM_BLOCKS}")
    await expect(banner.get_by_role("button", name="Show me")).to_be_visible()
    await banner.get_by_role("button", name="Close").click()
    await expect(banner).to_contain_text("No blocks are used yet.")


async def test_it_is_ended_and_its_refusal_told(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await sign_in(page, world.admin_url, view="wall")
    banner = page.get_by_role("region", name="Demonstration")
    await expect(banner.get_by_role("button", name="Show me")).to_be_visible()
    assert (await admin.post("/tenants", json={"id": "demo-ben"})).is_success
    await banner.get_by_role("button", name="Show me").click()
    await expect(banner.get_by_role("alert")).to_contain_text("a tenant called demo-ben already")
    assert (await admin.delete("/tenants/demo-ben")).is_success
    await banner.get_by_role("button", name="Show me").click()
    await banner.get_by_role("button", name="End it").click()
    await expect(banner.get_by_role("button", name="End it")).to_be_hidden()
    await expect(banner.get_by_role("alert")).to_be_empty()
    complaints.clear()  # the browser tells of the answer that was a refusal


@pytest.mark.exhaustive
async def test_who_may_only_read_is_offered_none(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    made = (await admin.post("/tokens", json={"name": "ann", "role": "read"})).json()
    await sign_in(page, world.admin_url, made["admin_token"], view="wall")
    banner = page.get_by_role("region", name="Demonstration")
    await expect(banner).to_contain_text("They appear as soon as somebody asks.")
    await expect(banner.get_by_role("button", name="Show me")).to_be_hidden()
