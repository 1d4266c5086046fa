"""Where a browser keeps conversations: for several tabs, in what room there is, without a key."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import World
from tests.app.console.chat.chatting import STORED, answered, beside, connected, enter, say
from tests.app.scripted_engine import ScriptedEngine

DATABASES = "async () => (await indexedDB.databases()).map(({name}) => name)"
AN_HOUR_AGO = """() => Object.defineProperty(performance, "timeOrigin", {
  value: performance.timeOrigin - 3_600_000,
})"""
FILL = """async (count) => {
  const opening = indexedDB.open("partywall");
  await new Promise((resolve) => { opening.onsuccess = resolve; });
  const database = opening.result;
  const transaction = database.transaction("conversations", "readwrite");
  for (let number = 0; number < count; number++) {
    const id = String(number);
    const heading = { id, title: `Number ${number}`, changedAt: 1e12 + number, draft: "" };
    transaction.objectStore("conversations").put(heading, ["acme", id]);
  }
  await new Promise((resolve) => { transaction.oncomplete = resolve; });
  database.close();
}"""
KEPT_DRAFT = """(draft) => new Promise((resolve) => {
  const opening = indexedDB.open("partywall");
  opening.onsuccess = () => {
    const transaction = opening.result.transaction("conversations");
    const asking = transaction.objectStore("conversations").getAll();
    asking.onsuccess = () => {
      opening.result.close();
      resolve(asking.result.some((one) => one.draft === draft));
    };
  };
})"""


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


async def test_a_second_tab_sees_what_the_first_one_asks_and_both_are_kept(
    page: Page, world: World
) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    tab = await beside(page, world, page.url)
    await expect(tab.locator(".message")).to_have_text(["You said: one"])
    world.engine.hold_after = 9
    await say(page, "two")
    await expect(tab.locator(".said")).to_have_text(["one", "two"])
    await expect(tab.locator(".message").last).to_have_text("You said:")
    world.engine.release()
    await answered(tab, 2)
    await expect(tab.locator(".message").last).to_have_text("You said: two")
    await answered(page, 2)
    await say(tab, "three")
    await expect(page.locator(".message").last).to_have_text("You said: three")
    await page.reload()
    await expect(page.locator(".said")).to_have_text(["one", "two", "three"])
    assert len(world.engine.requests) == 3
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Really delete?").click()
    await expect(tab.locator(".said")).to_have_count(0)


async def test_a_draft_of_each_conversation_survives_a_reload(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    await page.get_by_label("Message").fill("half a thought")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.get_by_label("Message")).to_have_value("")
    await page.get_by_label("Message").fill("another one")
    await page.wait_for_function(KEPT_DRAFT, arg="another one")
    await page.reload()
    await connected(page)
    await expect(page.get_by_label("Message")).to_have_value("another one")
    await page.get_by_role("link", name="one", exact=True).click()
    await expect(page.get_by_label("Message")).to_have_value("half a thought")


@pytest.mark.exhaustive
async def test_turns_are_kept_in_their_order_whatever_the_clocks_of_tabs(
    page: Page, world: World
) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    tab = await beside(page, world, page.url)
    await tab.evaluate(AN_HOUR_AGO)
    await say(tab, "two")
    await answered(tab, 2)
    await page.reload()
    await expect(page.locator(".said")).to_have_text(["one", "two"])


async def test_a_browser_that_has_no_room_left_is_told_of(page: Page, world: World) -> None:
    await enter(page, world)
    storage = await page.context.new_cdp_session(page)
    room = {"origin": world.base_url, "quotaSize": 1000}
    await storage.send("Storage.overrideQuotaForOrigin", room)
    await say(page, "word " * 300)
    await answered(page)
    await expect(page.get_by_role("alert")).to_contain_text("not kept in this browser: it has no")


async def test_no_key_is_kept_with_conversations(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    assert "partywall" in await page.evaluate(DATABASES)
    kept = await page.evaluate(STORED)
    assert {key[0] for keys in kept.values() for key in keys} == {"acme"}
    assert len(kept["turns"]) == len(kept["answers"]) == 1


@pytest.mark.exhaustive
async def test_tabs_that_know_nothing_of_each_other_overwrite_nothing(
    page: Page, world: World
) -> None:
    await page.context.add_init_script("BroadcastChannel.prototype.postMessage = () => {}")
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    tab = await beside(page, world, page.url)
    await expect(tab.locator(".message")).to_have_text(["You said: one"])
    for asking, text in ((page, "two"), (tab, "three")):
        await say(asking, text)
        await answered(asking, 2)
    await page.reload()
    await expect(page.get_by_text("2 of 2")).to_be_visible()
    await expect(page.locator(".message").last).to_have_text("You said: three")
    await page.get_by_role("button", name="The version before").click()
    await expect(page.locator(".message").last).to_have_text("You said: two")


@pytest.mark.exhaustive
async def test_the_oldest_of_too_many_conversations_are_forgotten(page: Page, world: World) -> None:
    await enter(page, world)
    await page.evaluate(FILL, 210)
    await page.reload()
    await connected(page)
    conversations = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    await expect(conversations).to_have_count(211)
    await say(page, "one")
    await answered(page)
    await expect(conversations).to_have_count(200)
    await expect(conversations.last).to_have_text("Number 11")
    await page.reload()
    await expect(conversations).to_have_count(200)
