"""Adapters in the console: those that a chat may choose from, and those of a tenant."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.adapter_files import LINEARS, config_of, weights_of
from tests.app.conftest import MODEL, World, eventually
from tests.app.console.chat.chatting import answered, enter, say, set_up, tape
from tests.app.console.looks import check_looks, check_page
from tests.app.console.signing_in import sign_in
from tests.app.scripted_engine import ScriptedEngine
from tests.tenants.adapters.putting import put


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


async def test_a_chat_goes_on_with_an_adapter_that_is_chosen(page: Page, world: World) -> None:
    world.engine.linears = {"model.q_proj": (8, 8)}
    await put(world.stores.adapters, "acme", "rhyme")
    await enter(page, world)
    await say(page, "Hello")
    await answered(page)
    await set_up(page, model=f"{MODEL}:rhyme")
    await say(page, "And now in rhyme?")
    await answered(page, 2)
    assert [one.adapter is not None for one in world.engine.requests] == [False, True]
    await expect(page.locator(".meta")).to_have_text(f"{MODEL} · adapter rhyme · as acme")


async def compare(page: Page, world: World) -> None:
    """Begin to compare the base with the tenant's adapter."""
    world.engine.linears = {"model.q_proj": (8, 8)}
    await put(world.stores.adapters, "acme", "rhyme")
    await enter(page, world)
    await page.get_by_role("button", name="New comparison").click()
    await page.get_by_label("and beside it").select_option(f"{MODEL}:rhyme")


def side(page: Page, name: str) -> Locator:
    return page.locator("section.column", has=page.get_by_role("heading", name=name, exact=True))


async def test_the_base_and_an_adapter_answer_side_by_side_and_go_on_each_by_itself(
    page: Page, world: World, tmp_path: Path
) -> None:
    await compare(page, world)
    base, rhyme = side(page, "The base"), side(page, f"{MODEL}:rhyme")
    world.engine.answer = "The sea is a body of salt water that covers most of the earth."
    world.engine.adapted_answer = "The sea is *wide*, the sea is deep."
    await say(page, "What is the sea?")
    await answered(page, 2)
    await expect(base.locator(".message")).to_contain_text("salt water")
    await expect(rhyme.locator(".message")).to_have_text("The sea is wide, the sea is deep.")
    await say(page, "And what is snow?")
    await answered(page, 4)
    asked = [one for who, one in await tape(page) if who == "client"]
    assert [one["model"] for one in asked] == [":", f"{MODEL}:rhyme"] * 2
    created = [one for _, one in await tape(page) if one["type"] == "response.created"]
    first = {one["stream_id"]: one["response"]["id"] for one in created[:2]}
    assert len(first) == 2
    for request in asked[2:]:
        assert request["previous_response_id"] == first[request["stream_id"]]
    await rhyme.get_by_role("button", name="Answer again").last.click()
    await expect(rhyme.get_by_text("2 of 2")).to_be_visible()
    await answered(page, 4)
    assert [one.adapter is not None for one in world.engine.requests[4:]] == [True]
    await page.locator("summary").filter(has_text="Settings").click()
    await check_looks(page, "compare", tmp_path, is_whole=False)
    left, right = [await one.bounding_box() for one in (base, rhyme)]
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
    await page.set_viewport_size({"width": 360, "height": 800})
    left, right = [await one.bounding_box() for one in (base, rhyme)]
    assert left is not None
    assert right is not None
    assert left["x"] == right["x"]
    assert left["y"] + left["height"] <= right["y"]


async def test_stop_stops_both_sides_and_a_comparison_is_come_back_to(
    page: Page, world: World
) -> None:
    await compare(page, world)
    world.engine.hold_after = 9
    await say(page, "Say it slowly")
    await expect(page.locator(".message")).to_have_text(["You said:", "You said:"])
    await page.get_by_role("button", name="New conversation").first.click()
    await expect(page.get_by_label("and beside it")).to_be_hidden()
    await expect(page.locator("section.column")).to_have_count(1)
    await page.get_by_role("link", name="Say it slowly").click()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".figures", has_text="stopped")).to_have_count(2)
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await eventually(lambda: not world.engine.active)
    world.engine.release()
    await say(page, "Go on")
    await answered(page, 4)
    assert [one.adapter is not None for one in world.engine.requests] == [False, True] * 2


async def test_what_is_compared_has_to_be_named(page: Page, world: World) -> None:
    await compare(page, world)
    await page.get_by_label("and beside it").select_option("")
    await expect(side(page, "Not chosen yet")).to_be_visible()
    await say(page, "Hello")
    await expect(page.get_by_role("alert").last).to_contain_text("Name two models")
    assert await page.get_by_label("Message").input_value() == "Hello"
    assert not world.engine.requests


MISTAKES = re.compile(r"status of 4\d\d")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """PEFT's two, as somebody has them on their disk."""
    config, weights = tmp_path / "adapter_config.json", tmp_path / "adapter_model.safetensors"
    config.write_bytes(config_of())
    weights.write_bytes(weights_of())
    return config, weights


async def opened(page: Page, world: World, owner: str = "acme") -> Locator:
    """The adapters of a tenant or a share group."""
    world.engine.linears = LINEARS
    await sign_in(page, world.admin_url, view=f"tenants/{owner}/adapters")
    adapters = page.locator("#view-tenants .panel")
    await expect(adapters.locator("[aria-busy=false]")).to_be_visible()
    return adapters


async def put_files(adapters: Locator, files: tuple[Path, Path], when: str = "at once") -> Locator:
    """Returns the dialog, which is closed once they are put."""
    await adapters.get_by_role("button", name="New adapter").click()
    dialog = adapters.get_by_role("dialog")
    for name, file in zip(("adapter_config.json", "adapter_model.safetensors"), files, strict=True):
        await dialog.get_by_label(name).set_input_files(file)
    await dialog.get_by_label("Name").fill("rhyme")
    await dialog.get_by_label("Activate it").select_option(when)
    await dialog.get_by_role("button", name="Put the adapter").click()
    return dialog


async def test_adapters_are_put_activated_pinned_and_deleted(
    page: Page, world: World, admin: httpx.AsyncClient, files: tuple[Path, Path]
) -> None:
    adapters = await opened(page, world)
    await put_files(adapters, files)
    row = adapters.get_by_role("row", name=re.compile("^rhyme"))
    await expect(row).to_contain_text(re.compile(r"rhyme\s*1\s*no\s*0\.0 MiB\s*store"))
    await row.get_by_role("link", name="rhyme").click()
    files[1].write_bytes(weights_of(0.25))
    await put_files(adapters, files, "later")
    versions = adapters.get_by_role("region", name="Versions of rhyme")
    await expect(versions.get_by_role("row")).to_have_count(3)
    await expect(versions).to_contain_text("q_proj, up_proj")
    await versions.get_by_role("button", name="Activate").click()
    await expect(row).to_contain_text(re.compile(r"rhyme\s*2\s*no"))
    await row.get_by_role("button", name="Pin", exact=True).click()
    await expect(row).to_contain_text(re.compile(r"rhyme\s*2\s*yes"))
    shown = (await admin.get("/tenants/acme/adapters/rhyme")).json()
    assert (shown["version"], shown["pinned"]) == (2, True)
    await expect(row.get_by_role("button", name="Unpin")).to_be_visible()
    await row.get_by_role("button", name="Delete").click()
    await row.get_by_role("button", name="Really delete?").click()
    await expect(row).to_have_count(0)
    assert (await admin.get("/tenants/acme/adapters")).json()["adapters"] == []


@pytest.mark.exhaustive
async def test_where_an_adapter_is_is_told_as_it_changes_and_looks_well(
    page: Page, world: World
) -> None:
    await put(world.stores.adapters, "acme", "rhyme")
    await put(world.stores.adapters, "umbra", "prose")
    adapters = await opened(page, world)
    row = adapters.get_by_role("row", name=re.compile("^rhyme"))
    await expect(row).to_contain_text("store")
    await adapters.get_by_role("button", name="New adapter").click()
    name = adapters.get_by_label("Name")
    await name.fill("half a na")
    await world.client().responses.create(model=f"{MODEL}:rhyme", input="Hello")
    await expect(row).to_contain_text("device")
    await expect(row).to_contain_text(re.compile(r"1×\s*20\d\d-.*250\.0 ms\s*2\.0 ms"))
    await put(world.stores.adapters, "acme", "judge")
    await expect(adapters.get_by_role("row", name=re.compile("^judge"))).to_be_visible()
    await expect(adapters.locator("tbody tr").first).to_contain_text("judge")
    await expect(name).to_have_value("half a na")
    await page.keyboard.press("Escape")
    await expect(name).to_have_count(0)
    await expect(adapters).not_to_contain_text("prose")
    await row.get_by_role("link", name="rhyme").click()
    await expect(adapters.get_by_role("region", name="Versions of rhyme")).to_be_visible()
    assert page.url.endswith("#tenants/acme/adapters/rhyme")
    for width in (360, 1440):
        await page.set_viewport_size({"width": width, "height": 800})
        await check_page(page, width)
    await world.stores.adapters.delete("acme", "judge")
    await expect(adapters.get_by_role("row", name=re.compile("^judge"))).to_have_count(0)
    world.engine.down = True
    await expect(row).not_to_contain_text("device")
    await expect(row).not_to_contain_text("store")


@pytest.mark.exhaustive
async def test_what_is_wrong_with_files_is_told_and_a_group_has_adapters_as_well(
    page: Page,
    world: World,
    admin: httpx.AsyncClient,
    files: tuple[Path, Path],
    complaints: list[str],
) -> None:
    await admin.post("/groups", json={"id": "guild"})
    adapters = await opened(page, world, "@guild")
    files[0].write_bytes(config_of(use_dora=True))
    dialog = await put_files(adapters, files)
    await expect(dialog.get_by_role("alert")).to_contain_text("use_dora")
    await dialog.get_by_role("button", name="Cancel").click()
    files[0].write_bytes(config_of())
    await put_files(adapters, files)
    await expect(adapters.get_by_role("row", name=re.compile("^rhyme"))).to_be_visible()
    listed = (await admin.get("/groups/guild/adapters")).json()["adapters"]
    assert [one["name"] for one in listed] == ["rhyme"]
    assert [one for one in complaints if not MISTAKES.search(one)] == []
    complaints.clear()


@pytest.mark.exhaustive
async def test_who_may_only_read_is_refused_and_told_so(
    page: Page,
    world: World,
    admin: httpx.AsyncClient,
    files: tuple[Path, Path],
    complaints: list[str],
) -> None:
    world.engine.linears = LINEARS
    await put(world.stores.adapters, "acme", "rhyme")
    token = {"name": "bob", "role": "read", "tenant": "acme"}
    made = (await admin.post("/tokens", json=token)).json()
    await sign_in(page, world.admin_url, made["admin_token"], view="tenants/acme/adapters")
    adapters = page.locator("#view-tenants .panel")
    row = adapters.get_by_role("row", name=re.compile("^rhyme"))
    await row.get_by_role("button", name="Pin", exact=True).click()
    await expect(adapters.get_by_role("alert")).to_contain_text("is for reads")
    dialog = await put_files(adapters, files)
    await expect(dialog.get_by_role("alert")).to_contain_text("is for reads")
    (kept,) = (await admin.get("/tenants/acme/adapters")).json()["adapters"]
    assert (kept["version"], kept["pinned"]) == (1, False)
    assert [one for one in complaints if not MISTAKES.search(one)] == []
    complaints.clear()
