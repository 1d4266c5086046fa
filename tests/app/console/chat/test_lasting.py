"""Conversations that last: behind a reload, in a second tab, renamed, found, saved and deleted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import World, eventually
from tests.app.console.chat.chatting import (
    STORED,
    answered,
    beside,
    connected,
    enter,
    hear_half,
    say,
    tape,
)
from tests.app.console.looks import check_page
from tests.app.console.signing_in import sign_in
from tests.app.scripted_engine import ScriptedEngine

SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
HOLD = """() => {
  const {line} = document.getElementById("view-chat");
  const hear = line.hear.bind(line);
  const held = [];
  line.hear = (event) => held.push(event);
  window.release = () => {
    line.hear = hear;
    held.forEach(hear);
  };
}"""


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


async def forget(world: World, response: str) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
        assert (await client.delete(f"/v1/responses/{response}")).is_success


async def test_a_conversation_is_there_behind_a_reload_and_is_gone_on_with(
    page: Page, world: World
) -> None:
    await enter(page, world)
    await say(page, "first of all")
    await answered(page)
    address = page.url
    await page.reload()
    await connected(page)
    await expect(page.locator(".said")).to_have_text(["first of all"])
    await expect(page.locator(".message")).to_have_text(["You said: first of all"])
    assert page.url == address
    await say(page, "and then")
    await answered(page, 2)
    asked = next(one for who, one in await tape(page) if who == "client")
    assert asked["previous_response_id"].startswith("resp_")
    await page.get_by_role("button", name="Sign out").click()
    await sign_in(page, world.base_url, world.keys["umbra"])
    await connected(page)
    await expect(page.get_by_role("link", name="first of all")).to_have_count(0)
    await page.get_by_role("button", name="Sign out").click()
    await sign_in(page, world.base_url, world.keys["acme"])
    await connected(page)
    await page.get_by_role("link", name="first of all").click()
    await expect(page.locator(".said")).to_have_text(["first of all", "and then"])


@pytest.mark.exhaustive
async def test_forks_and_what_was_chosen_of_them_are_kept(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("Edited message").fill("uno")
    await page.get_by_role("button", name="Ask this instead").click()
    await expect(page.locator(".message")).to_have_text(["You said: uno"])
    await page.get_by_role("button", name="The version before").click()
    await expect(page.locator(".message")).to_have_text(["You said: one"])
    await page.reload()
    await connected(page)
    await expect(page.locator(".message")).to_have_text(["You said: one"])
    await page.get_by_role("button", name="The next version").click()
    await expect(page.locator(".message")).to_have_text(["You said: uno"])


async def test_an_answer_that_a_reload_interrupts_goes_on(page: Page, world: World) -> None:
    await hear_half(page, world)
    await page.reload()
    await connected(page)
    await expect(page.locator(".message")).to_contain_text("You said:")
    world.engine.release()
    await answered(page)
    await expect(page.locator(".message")).to_have_text("You said: Say it slowly")
    said = [one["type"] for who, one in await tape(page) if who == "client"]
    assert said == ["response.resume"]
    assert len(world.engine.requests) == 1


async def test_an_answer_that_ended_while_the_page_was_away_is_fetched(
    page: Page, world: World
) -> None:
    await hear_half(page, world)
    address = page.url
    await page.goto("about:blank")
    world.engine.release()
    await eventually(lambda: not world.engine.active)
    await page.goto(address)
    await answered(page)
    await expect(page.locator(".message")).to_have_text("You said: Say it slowly")
    assert len(world.engine.requests) == 1


async def test_what_the_service_has_forgotten_is_told_again(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    created = [one for _, one in await tape(page) if one["type"] == "response.created"]
    await forget(world, created[0]["response"]["id"])
    await page.reload()
    await connected(page)
    await say(page, "two")
    await answered(page, 2)
    await expect(page.locator(".message").last).to_have_text("You said: two")
    prompt = world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    assert "You said: one" in prompt
    assert prompt.index("one") < prompt.index("two")
    await expect(page.locator(".problem")).to_have_count(0)


async def test_a_conversation_is_renamed_in_place(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "some words that are many more than a title would ever hold, as one sees here")
    await answered(page)
    heading = page.locator(".over").get_by_role("heading")
    await expect(heading).to_have_text("some words that are many more than a title…")
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("Glue")
    await page.get_by_label("Title").press("Escape")
    await expect(heading).to_contain_text("some words")
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("Glue")
    await page.get_by_label("Title").press("Enter")
    await expect(heading).to_have_text("Glue")
    await page.reload()
    await expect(page.get_by_role("link", name="Glue")).to_be_visible()


async def test_titles_and_what_was_said_are_searched(page: Page, world: World) -> None:
    await enter(page, world)
    for text in ("about glue", "about nails"):
        await say(page, text)
        await answered(page)
        await page.get_by_role("button", name="New conversation").click()
    everything = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    search = page.get_by_label("Search conversations")
    for wanted, found in (("NAILS", ["about nails"]), ("said: about glue", ["about glue"])):
        await search.fill(wanted)
        await expect(everything).to_have_text(found)
    await search.fill("no such thing")
    await expect(page.get_by_text("Nothing is found.")).to_be_visible()
    await search.fill("")
    await expect(everything).to_have_count(3)


async def test_what_is_deleted_is_gone_here_and_at_the_service(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "a secret")
    await answered(page)
    created = [one for _, one in await tape(page) if one["type"] == "response.created"]
    response = created[0]["response"]["id"]
    await page.get_by_role("button", name="Delete").click()
    async with page.expect_response(f"**/v1/responses/{response}"):
        await page.get_by_role("button", name="Really delete?").click()
    await expect(page.get_by_role("link", name="a secret")).to_have_count(0)
    await page.reload()
    await connected(page)
    assert not any((await page.evaluate(STORED)).values())
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
        assert (await client.get(f"/v1/responses/{response}")).status_code == 404


async def test_a_conversation_is_saved_as_markdown_and_as_json(
    page: Page, world: World, tmp_path: Path
) -> None:
    world.engine.answer = "It is **wide**."
    await enter(page, world)
    await say(page, "What is the sea?")
    await answered(page)
    async with page.expect_download() as markdown:
        await page.get_by_role("button", name="Save as Markdown").click()
    download = await markdown.value
    assert download.suggested_filename == "What-is-the-sea.md"
    await download.save_as(tmp_path / "sea.md")
    text = (tmp_path / "sea.md").read_text()
    assert text == "# What is the sea?\n\n> What is the sea?\n\nIt is **wide**.\n"
    async with page.expect_download() as saved:
        await page.get_by_role("button", name="Save as JSON").click()
    await (await saved.value).save_as(tmp_path / "sea.json")
    document = json.loads((tmp_path / "sea.json").read_text())
    assert document["title"] == "What is the sea?"
    assert document["turns"][0]["answer"]["items"][0]["text"] == "It is **wide**."


async def test_a_link_leads_to_a_conversation_and_back(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    first = page.url
    assert re.search(r"#chat/[0-9a-f]{16}$", first)
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "two")
    await answered(page)
    assert page.url != first
    await page.go_back()
    await expect(page.locator(".said")).to_have_text(["one"])
    tab = await beside(page, world, first)
    await expect(tab.locator(".said")).to_have_text(["one"])
    await tab.goto(f"{first[:-1]}{'0' if first[-1] != '0' else '1'}")
    await expect(tab.get_by_role("alert")).to_contain_text("not in this browser")


async def test_what_is_deleted_before_its_answer_begins_is_forgotten_at_the_service_too(
    page: Page, world: World
) -> None:
    await enter(page, world)
    await page.evaluate(HOLD)
    await say(page, "a secret")
    await eventually(lambda: bool(world.engine.requests))
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Really delete?").click()
    await expect(page.locator(".said")).to_have_count(0)
    async with page.expect_response("**/v1/responses/resp_*") as forgotten:
        await page.evaluate("release()")
    assert (await forgotten.value).request.method == "DELETE"
    assert not any((await page.evaluate(STORED)).values())


async def test_on_a_telephone_conversations_are_behind_a_button(page: Page, world: World) -> None:
    await page.set_viewport_size({"width": 360, "height": 640})
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    new = page.get_by_role("button", name="New conversation")
    await expect(new).to_be_hidden()
    await expect(page.get_by_label("Message")).to_be_in_viewport()
    await page.get_by_role("button", name="Conversations").click()
    await expect(page.get_by_role("link", name="one")).to_be_visible()
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        await check_page(page, 360)
    await new.click()
    await expect(new).to_be_hidden()
    await expect(page.locator(".said")).to_have_count(0)


async def test_an_answer_is_stopped_behind_a_reload(page: Page, world: World) -> None:
    await hear_half(page, world)
    await page.reload()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".figures")).to_contain_text("stopped")
    await eventually(lambda: not world.engine.active)


@pytest.mark.exhaustive
async def test_what_is_forgotten_while_it_is_written_is_asked_again(
    page: Page, world: World, complaints: list[str]
) -> None:
    await hear_half(page, world)
    created = [one for _, one in await tape(page) if one["type"] == "response.created"]
    address = page.url
    await page.goto("about:blank")
    await forget(world, created[0]["response"]["id"])
    world.engine.release()
    await page.goto(address)
    await answered(page)
    await expect(page.locator(".message")).to_have_text("You said: Say it slowly")
    assert len(world.engine.requests) == 2
    assert [one for one in complaints if "404" not in one] == []
    complaints.clear()  # the browser tells that the response is not there
