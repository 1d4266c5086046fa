"""What people read when something does not go as they wished: what happened, and what to do."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tenants.usage.prices import PriceList, Prices
from tests.app.conftest import MODEL, World, eventually
from tests.app.console.chat.chatting import (
    answered,
    connected,
    cut,
    enter,
    hear_half,
    say,
    set_up,
    tape,
)
from tests.app.console.looks import check_page
from tests.app.console.signing_in import sign_in
from tests.app.scripted_engine import ScriptedEngine

FILES = """([name]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File(["x"], name, { type: "image/png" }));
  const event = new Event("drop", { cancelable: true });
  Object.defineProperty(event, "dataTransfer", { value: transfer });
  document.querySelector(".composer").dispatchEvent(event);
}"""
WATCH = """() => {
  window.heard = [];
  const region = document.querySelector(".heard");
  const observer = new MutationObserver(() => window.heard.push(region.textContent));
  observer.observe(region, { childList: true });
}"""


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


@pytest.fixture
def prices() -> PriceList:
    return PriceList(model=Prices(currency="EUR", input=1000, cached=10, written=2000, output=5000))


async def failed(page: Page, text: str) -> None:
    await say(page, "Hello")
    await expect(page.locator(".problem").last).to_contain_text(text)


async def test_limits_are_told_with_when_to_try_again(page: Page, world: World) -> None:
    await enter(page, world)
    await world.limit("acme", requests_per_minute=1)
    await say(page, "Hello")
    await answered(page)
    await failed(page, "Too many requests or tokens were asked for within a minute.")
    await expect(page.locator(".problem")).to_contain_text(r"Try again in ")
    await world.limit("acme", tokens_per_day=1)
    await failed(page, "The tokens of this day are used up")
    world.engine.hold_after = 3
    await world.limit("acme", concurrent_streams=1)
    await say(page, "Hello")
    await eventually(lambda: len(world.engine.active) == 1)
    await page.get_by_role("button", name="New conversation").click()
    await failed(page, "Wait until one has ended, or stop one.")
    world.engine.release()


async def test_an_engine_that_is_away_and_one_that_fails_are_told_of(
    page: Page, world: World
) -> None:
    await enter(page, world)
    world.engine.down = True
    await failed(page, "The engine is being started again. Try again in a few seconds.")
    await page.get_by_text("Line and raw events").click()
    await expect(page.locator(".tape")).to_contain_text("The engine is not available right now.")
    world.engine.down = False
    await page.get_by_role("button", name="Answer again").click()
    await expect(page.locator(".message")).to_have_text("You said: Hello")


async def test_a_shortened_answer_is_gone_on_with(page: Page, world: World) -> None:
    await enter(page, world)
    await set_up(page, tokens="4")
    await say(page, "Hello")
    await answered(page)
    notice = page.locator(".notice")
    await expect(notice).to_contain_text(
        "It ended at the limit of 4 tokens: raise it in the settings, or ask it to go on."
    )
    await check_page(page, 1440)
    await set_up(page, tokens="")
    await page.get_by_role("button", name="Go on").click()
    await answered(page, 2)
    await expect(notice).to_be_hidden()
    last = [one for who, one in await tape(page) if who == "client"][-1]
    assert last["input"] == "Go on."
    assert last["previous_response_id"].startswith("resp_")


async def test_a_conversation_that_fills_the_context_is_begun_anew(
    page: Page, world: World
) -> None:
    world.engine.answer = "word " * 600
    await enter(page, world)
    await say(page, "Many words")
    await answered(page)
    await expect(page.locator(".notice")).to_contain_text("as long as the model can read")
    await expect(page.get_by_role("button", name="Go on")).to_be_hidden()


async def test_a_revoked_key_leads_back_to_where_one_signs_in(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await enter(page, world)
    for key in (await admin.get("/tenants/acme/keys")).json()["keys"]:
        assert (await admin.delete(f"/tenants/acme/keys/{key['id']}")).is_success
    await expect(page.get_by_label("API key or admin token")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_text("This API key is not valid.")
    await page.close()
    complaints.clear()  # the browser tells of each handshake that is refused


async def test_an_operators_revoked_key_leads_back_to_where_they_choose_one(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await sign_in(page, world.admin_url, view="chat")
    await page.get_by_label("Tenant").select_option("umbra")
    await page.get_by_role("button", name="Make a key").click()
    await connected(page)
    await expect(page.locator(".meta")).to_have_text(f"{MODEL} · as umbra")
    for key in (await admin.get("/tenants/umbra/keys")).json()["keys"]:
        assert (await admin.delete(f"/tenants/umbra/keys/{key['id']}")).is_success
    await expect(page.get_by_role("button", name="Make a key")).to_be_visible()
    await expect(page.locator("#view-chat [role=alert]")).to_have_text("This API key is not valid.")
    await page.close()
    complaints.clear()


async def test_pictures_are_not_taken_where_the_model_sees_none(page: Page, world: World) -> None:
    await enter(page, world)
    await expect(page.locator(".meta")).to_contain_text(MODEL)
    await expect(page.get_by_label("Pictures to show")).to_be_hidden()
    await page.evaluate(FILES, ["a.png"])
    await expect(page.get_by_role("alert")).to_contain_text("This model sees no pictures")
    await expect(page.locator(".composer .pictures img")).to_have_count(0)


async def test_an_answer_is_told_once_to_who_hears_the_page(page: Page, world: World) -> None:
    await hear_half(page, world)
    await page.evaluate(WATCH)
    world.engine.release()
    await answered(page)
    await expect(page.locator(".heard")).to_have_text("You said: Say it slowly")
    assert await page.evaluate("window.heard") == ["You said: Say it slowly"]


async def test_of_a_long_answer_is_told_how_it_begins(page: Page, world: World) -> None:
    world.engine.answer = "word " * 500
    await enter(page, world)
    await say(page, "Many words")
    await answered(page)
    await expect(page.locator(".heard")).to_have_text("word " * 400 + "… The rest is in the page.")


@pytest.mark.exhaustive
async def test_the_line_is_for_developers_and_bounded(page: Page, world: World) -> None:
    world.engine.answer = "word " * 200
    await enter(page, world)
    await expect(page.get_by_role("button", name="Cut the line")).to_be_hidden()
    await say(page, "Many words")
    await answered(page)
    assert len(await tape(page)) == 500
    drawer = page.get_by_text("Line and raw events")
    await drawer.click()
    entries = page.locator(".tape > li")
    await expect(entries).to_have_count(300)
    await expect(entries.last).to_contain_text("← response.completed chat-1")
    await entries.last.locator("summary").click()
    await expect(entries.last.locator("pre")).to_contain_text('"status": "completed"')
    await check_page(page, 1440)
    await drawer.click()
    await cut(page)
    await connected(page)


async def test_a_budget_that_is_spent_is_told_of(page: Page, world: World) -> None:
    await world.limit("acme", hard_budget_micros=1)
    await enter(page, world)
    await failed(page, "What is left of this month's budget is less than this may cost.")
    text = await page.locator(".problem").inner_text()
    assert "0.000" not in text
