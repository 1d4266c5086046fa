"""The wall in a browser shows what the engine's books say, in numbers and in colours."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from msgspec import structs
from playwright.async_api import Page, expect

from engine.api import Roll
from engine.blocks.wall import FINDABLE, HELD, LEASED, PINNED
from tests.app.conftest import MODEL, World
from tests.app.console.looks import check_looks, check_page
from tests.app.console.signing_in import sign_in
from tests.app.pooled_engine import PooledEngine
from tests.engine.blocks.test_wall import truth
from tests.engine.blocks.watching import Cell
from tests.engine.clock import at_a_models_pace

# What is shown, as the page has taken it in, and as it is drawn.
CELLS = """() => {
  const {cells} = document.getElementById("view-wall");
  return [...cells.state].map((state, cell) => [
    state, state ? cells.owners[cells.owner[cell]] : "", cells.references[cell]]);
}"""
DRAWN = """async () => {
  const view = document.getElementById("view-wall");
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const {cells} = view, canvas = view.querySelector("canvas");
  const {Picture} = await import(new URL("./wall/picture.js", document.scripts[0].src));
  const width = view.querySelector(".cells").clientWidth;
  const picture = new Picture(document.createElement("canvas"), cells);
  picture.layOut(width);
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colour = (cell) => {
    const place = picture.placeOf(cell), half = Math.floor(picture.size / 2);
    const x = (place % picture.columns) * picture.size + half;
    const y = Math.floor(place / picture.columns) * picture.size + half;
    const at = 4 * (y * canvas.width + x);
    return "#" + [0, 1, 2].map((i) => pixels[at + i].toString(16).padStart(2, "0")).join("");
  };
  return [...cells.state.keys()].map(colour);
}"""
# By colour, how many of 200 cells have it.
DISK_COLOURS = """() => {
  const canvas = document.querySelector(".disk canvas"), counts = {};
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) {
    const parts = [...data.subarray(at, at + 3)].map((one) => one.toString(16).padStart(2, "0"));
    const colour = `#${parts.join("")}`;
    if (colour !== "#ffffff") counts[colour] = (counts[colour] ?? 0) + 1;
  }
  const all = Object.values(counts).reduce((sum, one) => sum + one, 0);
  return Object.fromEntries(Object.entries(counts).map(([name, one]) => [name, 200 * one / all]));
}"""
COLOURS = {
    "free": "#e9ecf0",
    "cached": "#8fb4dd",
    "leased": "#c3a3e0",
    "in use": "#2f9e5b",
    "shared": "#d98400",
    "pinned": "#b3324f",
    "on-disk": "#9a7b5b",
}


def kind(cell: Cell) -> str:
    if cell.state & PINNED:
        return "pinned"
    if cell.state & HELD:
        return "shared" if cell.num_references > 1 else "in use"
    if cell.state & LEASED:
        return "leased"
    return "cached" if cell.state & FINDABLE else "free"


async def random_load(world: World, rng: random.Random) -> None:
    async def say(tenant: str, text: str, **options: Any) -> None:
        await world.client(tenant).responses.create(
            model=MODEL, input=text, max_output_tokens=rng.randrange(1, 30), **options
        )

    texts = [f"{number} bottles of beer on the wall, " * 4 for number in range(5)]
    for _ in range(4):
        lease = rng.choice([{}, {"prompt_cache_options": {"ttl": "30m"}}])
        await asyncio.gather(
            *(say(rng.choice(["acme", "umbra"]), rng.choice(texts), **lease) for _ in range(5))
        )


async def test_cells_equal_the_books_after_a_random_load(
    page: Page, world: World, admin: httpx.AsyncClient, engine: PooledEngine
) -> None:
    await page.emulate_media(color_scheme="light")
    await sign_in(page, world.admin_url)
    await expect(page.locator(".legend")).to_contain_text("free 160")
    await world.register("acme", "desk", "You know the catalog: anvils, rope and glue. " * 2)
    assert (await admin.post("/tenants/acme/prompts/desk/pin")).is_success
    await random_load(world, random.Random(1))
    while (await engine.stats()).running:
        pass
    core = engine.cores[-1]
    async with asyncio.timeout(60):
        while [Cell(*one) for one in await page.evaluate(CELLS)] != truth(core):
            pass
    books = truth(core)
    assert await page.evaluate(DRAWN) == [COLOURS[kind(cell)] for cell in books]
    assert {kind(cell) for cell in books} >= {"free", "cached", "leased", "pinned"}


@pytest.mark.exhaustive
async def test_a_block_is_told_in_words_and_the_view_is_taken_away(
    page: Page, world: World, engine: PooledEngine
) -> None:
    await sign_in(page, world.admin_url)
    await world.client().responses.create(model=MODEL, input="hello " * 20, max_output_tokens=2)
    await expect(page.locator("#wall-summary")).to_contain_text("By owner: acme")
    await page.get_by_role("img", name="KV blocks").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".detail")).to_contain_text("Block 0 of acme: cached")
    await page.get_by_role("img", name="KV blocks").hover(position={"x": 3, "y": 3})
    await expect(page.locator(".detail")).to_contain_text("Block 0 of acme")
    await page.get_by_label("Tenant").select_option("acme")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("admin token")).to_be_focused()
    async with asyncio.timeout(60):
        while engine.cores[-1].wall._watchers:
            await engine.stats()


QUESTION = "what does the catalog say of anvils? " * 8
OUTLINED = """(name) => document.querySelector(`.chain .${name}`).getAttribute("d")
  .split("z").filter(Boolean).map((box) => box.match(/[0-9.]+/g).slice(0, 2).map(Number))"""
CORNERS = """(cells) => {
  const view = document.getElementById("view-wall");
  return import(new URL("./wall/picture.js", document.scripts[0].src)).then(({Picture}) => {
    const picture = new Picture(document.createElement("canvas"), view.cells);
    picture.layOut(view.querySelector(".cells").clientWidth);
    return cells.map((cell) => [
      (cell % picture.columns) * picture.size, Math.floor(cell / picture.columns) * picture.size]);
  });
}"""


async def ask(world: World, tokens: int = 3) -> None:
    await world.client().responses.create(model=MODEL, input=QUESTION, max_output_tokens=tokens)


async def test_a_request_tells_its_chain_where_it_broke_and_who_evicted_it(
    page: Page, world: World, admin: httpx.AsyncClient, engine: PooledEngine, tmp_path: Path
) -> None:
    await sign_in(page, world.admin_url)
    await expect(page.locator(".told")).to_contain_text("No request is there")
    await expect(page.locator(".legend")).to_contain_text("free 160")  # from now on it is watched
    await ask(world)
    await engine.clear()
    await ask(world)
    requests = page.get_by_role("grid", name="Requests")
    options = requests.locator("tbody tr")
    await expect(options).to_have_count(2)
    await options.first.click()
    told = page.locator(".told")
    await expect(told).to_contain_text("0 found")
    await expect(told).to_contain_text("broke at token 0: evicted by a deletion")
    await check_looks(page, "request", tmp_path)
    (lost, _) = (await admin.get("/wall/requests")).json()["requests"]
    cells = lost["lines"][0]
    assert await page.evaluate(OUTLINED, "own") == await page.evaluate(CORNERS, cells)
    assert await page.evaluate(OUTLINED, "found") == []
    corner = (await page.evaluate(CORNERS, cells[2:3]))[0]
    await page.get_by_role("img", name="KV blocks").hover(
        position={"x": corner[0] + 3, "y": corner[1] + 3}
    )
    detail = page.locator(".detail")
    await expect(detail).to_contain_text(f"In the chain of {lost['id']} (finished, block 3)")
    await expect(detail).to_contain_text(re.compile(r"Block 3 of \d+ of acme's conversation resp_"))
    await expect(detail).to_contain_text(re.compile(r"used \d+ s ago, hit by 0 of 1 requests"))
    await ask(world)
    await requests.focus()
    await expect(options).to_have_count(3)
    await page.keyboard.press("Home")
    await expect(options.first).to_have_attribute("aria-selected", "true")
    await expect(told).to_contain_text("all of the prompt that can be found was")
    outlined = await page.evaluate(OUTLINED, "found")
    assert outlined == (await page.evaluate(CORNERS, cells))[: len(outlined)]
    assert len(outlined) > 2
    await page.keyboard.press("Escape")
    await expect(told).to_contain_text("Choose a request")
    await expect(page.locator(".chain")).to_be_hidden()


@pytest.mark.exhaustive
async def test_a_second_request_is_seen_to_lean_on_the_first_ones_blocks(
    page: Page, world: World, engine: PooledEngine
) -> None:
    await sign_in(page, world.admin_url)
    at_a_models_pace(engine.cores[-1])
    answers = [asyncio.create_task(ask(world, 1500))]
    running = page.locator(".requests tbody tr").filter(has_text="running")
    await expect(running).to_have_count(1)
    answers.append(asyncio.create_task(ask(world, 1500)))
    await expect(running).to_have_count(2)
    await running.last.click()
    await expect(page.locator(".told")).to_contain_text(re.compile(r" [1-9][0-9]* shared with"))
    for answer in answers:
        answer.cancel()
    await asyncio.gather(*answers, return_exceptions=True)
    await expect(running).to_have_count(0)


@pytest.mark.exhaustive
async def test_what_is_on_disk_has_cells(
    page: Page, world: World, engine: PooledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    roll, on_disk = engine.roll, {"acme": 120, "umbra": 80}

    async def with_disk(replica: int = 0, cell: int | None = None) -> Roll:
        return structs.replace(await roll(replica, cell), on_disk=dict(on_disk))

    monkeypatch.setattr(engine, "roll", with_disk)
    await page.emulate_media(color_scheme="light")
    await sign_in(page, world.admin_url)
    await expect(page.locator(".legend")).to_contain_text("on disk 200")
    disk = page.locator(".disk")
    await expect(disk).to_contain_text("By owner: acme 120, umbra 80.")
    assert await page.evaluate(DISK_COLOURS) == {COLOURS["on-disk"]: 200}
    await check_page(page, 1440)
    await page.get_by_label("Colours").select_option("owners")
    assert sorted((await page.evaluate(DISK_COLOURS)).values()) == [80, 120]
    on_disk.clear()
    await expect(disk).to_be_hidden()


@pytest.mark.exhaustive
async def test_replicas_are_seen_side_by_side(
    page: Page, world: World, engine: PooledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall, roll, count = engine.wall, engine.roll, 3

    async def any_wall(watcher: str, _replica: int = 0) -> bytes:
        return await wall(watcher)

    async def any_roll(_replica: int = 0, _cell: int | None = None) -> Roll:
        return structs.replace(await roll(), replicas=count)

    monkeypatch.setattr(engine, "wall", any_wall)
    monkeypatch.setattr(engine, "roll", any_roll)
    await sign_in(page, world.admin_url)
    await expect(page.get_by_role("img", name="KV blocks")).to_have_count(3)
    await expect(page.locator(".legend")).to_contain_text(["free 160"] * 3)
    assert await page.locator(".walls h2:visible").all_inner_texts() == [
        text for number in range(3) for text in (f"Replica {number}", "Requests")
    ]
    await page.set_viewport_size({"width": 360, "height": 800})
    async with asyncio.timeout(60):
        while await page.evaluate("document.documentElement.scrollWidth") > 360:
            pass
    await page.locator("[name=replica]").select_option("1")
    await expect(page.get_by_role("img", name="KV blocks")).to_have_count(1)
    await expect(page.get_by_role("heading", name="Replica 1")).to_be_visible()
    await page.locator("[name=replica]").select_option("")
    await expect(page.get_by_role("img", name="KV blocks")).to_have_count(3)
    count = 2
    await expect(page.get_by_role("img", name="KV blocks")).to_have_count(2)
    await page.get_by_role("button", name="Sign out").click()
    async with asyncio.timeout(60):
        while engine.cores[-1].wall._watchers:
            await engine.stats()


@pytest.mark.exhaustive
async def test_it_fits_a_telephone_and_is_legible_in_the_dark(page: Page, world: World) -> None:
    await sign_in(page, world.admin_url)
    schemes: list[tuple[int, Literal["dark", "light"]]] = [(360, "dark"), (1440, "light")]
    for width, scheme in schemes:
        await page.set_viewport_size({"width": width, "height": 800})
        await page.emulate_media(color_scheme=scheme)
        await expect(page.locator(".legend")).to_contain_text("free 160")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        drawn = set(await page.evaluate(DRAWN))
        assert drawn == {"#262b32" if scheme == "dark" else COLOURS["free"]}


@pytest.mark.exhaustive
async def test_a_wrong_token_is_refused_and_not_kept(
    page: Page, world: World, complaints: list[str]
) -> None:
    await sign_in(page, world.admin_url, "of nobody at all")
    await expect(page.get_by_role("alert")).to_contain_text("token")
    assert await page.evaluate("sessionStorage.length") == 0
    assert [one for one in complaints if "401" not in one] == []
    complaints.clear()  # the browser tells of each answer that is an error
