"""A wall of 20,000 blocks on a telephone: tiles of several, and a closer look at a part."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import World
from tests.app.console.looks import check_looks, check_page
from tests.app.console.signing_in import sign_in
from tests.app.console.wall.test_wall import random_load
from tests.app.pooled_engine import PooledEngine

NUM_BLOCKS = 20_000
# How large what is drawn is, and the colours of the first tiles.
DRAWN = """async () => {
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const canvas = document.querySelector("#view-wall canvas");
  const size = parseInt(document.querySelector(".grid").style.backgroundSize);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = [];
  for (let x = size / 2 | 0; x < canvas.width; x += size) {
    const at = 4 * ((size / 2 | 0) * canvas.width + x);
    colours.push([...data.subarray(at, at + 3)].join());
  }
  return [size, canvas.height / size * colours.length, colours];
}"""


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer, NUM_BLOCKS)
    await engine.start()
    yield engine
    await engine.close()


@pytest.mark.exhaustive
async def test_blocks_are_seen_as_tiles_and_closer_one_by_one(
    page: Page, world: World, tmp_path: Path
) -> None:
    await page.set_viewport_size({"width": 360, "height": 800})
    await sign_in(page, world.admin_url, view="wall")
    await random_load(world, random.Random(1))
    await expect(page.locator(".legend")).to_contain_text(re.compile(r"cached [1-9]"))
    zoom, detail = page.locator(".zoom"), page.locator(".detail")
    await expect(zoom).to_contain_text("A tile is 9 blocks")
    size, tiles, colours = await page.evaluate(DRAWN)
    assert size >= 8
    assert NUM_BLOCKS / 9 <= tiles < NUM_BLOCKS / 9 + 100
    assert len(set(colours)) > 2, "what is used is told from what is free, and cached from leased"

    picture = page.get_by_role("img", name="KV blocks")
    await picture.focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    await expect(detail).to_contain_text(re.compile(r"Blocks 9 to 17: .*(cached|leased)"))
    await check_looks(page, "large", tmp_path)
    await page.set_viewport_size({"width": 360, "height": 800})

    await picture.focus()
    await page.keyboard.press("Enter")
    await expect(zoom).to_contain_text(re.compile(r"Cells 0 to \d+ of 20,000"))
    size, cells, _ = await page.evaluate(DRAWN)
    assert size >= 12
    assert cells < 2000
    await expect(detail).to_contain_text(re.compile(r"Block 9 of (acme|umbra)"))
    await check_page(page, 360)
    await page.get_by_role("button", name="The part behind").click()
    await expect(zoom).not_to_contain_text("Cells 0 to")
    await picture.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(zoom).to_contain_text("Cells 0 to")  # where the chosen block is
    await page.keyboard.press("Escape")
    await expect(zoom).to_contain_text("A tile is 9 blocks")
    await picture.click(position={"x": 200, "y": 300})
    await expect(zoom).to_contain_text(re.compile(r"Cells [1-9][\d,]+ to"))
    await page.get_by_role("button", name="All blocks").click()
    await expect(zoom).to_contain_text("A tile is 9 blocks")


async def test_a_loading_wall_and_one_that_does_not_come_are_told(
    page: Page, world: World, complaints: list[str]
) -> None:
    await page.route("**/admin/wall?*", lambda route: route.fulfill(status=503, json={}))
    await sign_in(page, world.admin_url, view="wall")
    news = page.locator(".news")
    await expect(news).to_contain_text("Not shown right now")
    await check_page(page, 1440)
    await page.unroute("**/admin/wall?*")
    await expect(page.locator(".legend")).to_contain_text("free 20,000")
    await expect(news).to_be_empty()
    await expect(page.locator(".loading")).to_be_hidden()
    complaints.clear()  # the browser tells of each answer that is an error
