"""The last ten minutes of the wall: as they were, within a bound; live goes on meanwhile."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.app.conftest import MODEL, World
from tests.app.console.looks import check_looks
from tests.app.console.signing_in import sign_in
from tests.app.pooled_engine import PooledEngine

SAID = "what does the catalog say of anvils, and of rope? " * 4
# Whether each moment is found again as it was, in any order; frames come five seconds apart.
REPLAYED = """async (frames) => {
  const at = (name) => new URL(name, document.scripts[0].src);
  const {Cells} = await import(at("./wall/frames.js"));
  const {History} = await import(at("./wall/past/history.js"));
  const bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const cells = new Cells(), kept = new History(), truth = [];
  const told = (one) => JSON.stringify([[...one.state], one.owners,
    [...one.owner].map((owner, cell) => one.state[cell] ? owner : 0), [...one.references]]);
  frames.map(bytes).forEach((frame, index) => {
    cells.take(frame, 5000 * index, () => {});
    kept.take(frame, 5000 * index, cells);
    truth.push(told(cells));
  });
  const order = [...truth.keys()].sort((one, other) => (one * 7) % 11 - (other * 7) % 11);
  return {
    segments: kept.segments.length,
    wrong: order.filter((index) => told(kept.look(5000 * index + 1000)) !== truth[index]),
  };
}"""
# Ten minutes and more of as much as a stream may bring: how much is kept, of how long.
FLOODED = """async () => {
  const at = (name) => new URL(name, document.scripts[0].src);
  const {Cells} = await import(at("./wall/frames.js"));
  const {History, MOST_BYTES, KEPT_MS} = await import(at("./wall/past/history.js"));
  const cells = new Cells(), kept = new History();
  cells.begin(21000, 0);
  cells.own("acme");
  let most = 0;
  const flood = (from, to, frame) => {
    for (let now = from; now < to; now += 200) {
      kept.take(frame, now, cells);
      most = Math.max(most, kept.bytes);
    }
    return to - kept.first;
  };
  const busy = flood(0, 900000, new Uint8Array(10000));
  const quiet = flood(900000, 2000000, new Uint8Array(1000));
  return {most, MOST_BYTES, busy, quiet, KEPT_MS};
}"""


async def ask(world: World, tenant: str, number: int = 0) -> None:
    text = f"{number}: {SAID}"
    await world.client(tenant).responses.create(model=MODEL, input=text, max_output_tokens=3)


async def test_each_moment_is_found_again_as_it_was(
    page: Page, world: World, engine: PooledEngine
) -> None:
    await sign_in(page, world.admin_url)
    frames = [await engine.wall("test")]
    for number in range(24):
        await ask(world, ("acme", "umbra")[number % 2], number)
        frames.append(await engine.wall("test"))
    coded = [base64.b64encode(frame).decode() for frame in frames]
    found = await page.evaluate(REPLAYED, coded)
    assert found["segments"] > 3
    assert found["wrong"] == []


async def test_what_is_kept_has_a_bound(page: Page, world: World) -> None:
    await sign_in(page, world.admin_url)
    found = await page.evaluate(FLOODED)
    assert found["most"] <= found["MOST_BYTES"] + 200_000
    assert 180_000 < found["busy"] < found["KEPT_MS"], "at 50 KB a second some minutes are kept"
    assert found["KEPT_MS"] <= found["quiet"] < found["KEPT_MS"] + 60_000


@pytest.mark.exhaustive
async def test_one_looks_back_while_what_happens_now_is_received(
    page: Page, world: World, tmp_path: Path
) -> None:
    await sign_in(page, world.admin_url)
    legend, past = page.locator(".legend"), page.locator(".past")
    await expect(legend).to_contain_text("free 160")
    await expect(page.locator(".when")).to_have_text("Live")
    await ask(world, "acme")
    await expect(legend).to_contain_text(re.compile(r"cached [1-9]"))
    await page.locator(".requests tbody tr").first.click()
    await expect(page.locator(".chain")).to_be_visible()

    slider = page.get_by_label("Look back")
    await slider.focus()
    await page.keyboard.press("Home")
    await expect(past).to_contain_text("You look at the past")
    await expect(legend).to_contain_text("free 160")
    await expect(slider).to_have_attribute("aria-valuetext", re.compile(r"\d\d:\d\d:\d\d, .*ago"))
    await expect(page.locator(".chain")).to_be_hidden()
    await ask(world, "umbra")
    await expect(page.locator(".requests tbody tr")).to_have_count(2)
    await check_looks(page, "past", tmp_path)
    await expect(legend).to_contain_text("free 160")
    await expect(page.locator("#wall-summary")).not_to_contain_text("umbra")

    await page.get_by_role("button", name="Live").click()
    await expect(past).to_be_empty()
    await expect(page.locator("#wall-summary")).to_contain_text("umbra")
    await expect(page.locator(".chain")).to_be_visible()


async def test_the_past_is_played_until_now(page: Page, world: World) -> None:
    await sign_in(page, world.admin_url)
    legend = page.locator(".legend")
    await expect(legend).to_contain_text("free 160")
    await ask(world, "acme")
    await expect(legend).to_contain_text(re.compile(r"cached [1-9]"))
    await page.get_by_label("Look back").focus()
    await page.keyboard.press("Home")
    await expect(legend).to_contain_text("free 160")
    await page.get_by_label("Speed").select_option("16")
    await page.get_by_role("button", name="Play").click()
    await expect(page.locator(".when")).to_have_text("Live")
    await expect(legend).to_contain_text(re.compile(r"cached [1-9]"))
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".past")).to_contain_text("You look at the past")
