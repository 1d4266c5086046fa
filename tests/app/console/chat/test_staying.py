"""A chat that one stays in: how answers are asked for, followed and copied."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import MODEL, World
from tests.app.console.chat.chatting import answered, enter, say, tape
from tests.app.scripted_engine import ScriptedEngine

LONG = "\n\n".join(f"Line {number}" for number in range(60))
AT_END = """() => {
  const {scrollHeight, scrollTop, clientHeight} = document.scrollingElement;
  return scrollHeight - scrollTop - clientHeight < 60;
}"""
CODE = "Do this:\n\n```\nmake serve\n```\n"


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


async def test_answers_are_asked_for_as_in_the_terminal_unless_settings_say_otherwise(
    page: Page, world: World
) -> None:
    await enter(page, world)
    for count, temperature in enumerate((0.6, 0.2, None), 1):
        if count > 1:
            await page.get_by_text("Settings of this conversation").click()
            await page.get_by_label("Temperature").fill(str(temperature or ""))
            await page.get_by_text("Settings of this conversation").click()
        await say(page, "Hello")
        await answered(page, count)
        asked = [one for who, one in await tape(page) if who == "client"][-1]
        assert asked.get("temperature") == temperature


@pytest.mark.exhaustive
async def test_an_answer_is_followed_unless_one_has_scrolled_away(page: Page, world: World) -> None:
    world.engine.answer, world.engine.hold_after = LONG, 200
    await enter(page, world)
    await say(page, "Many lines")
    await expect(page.get_by_text("Line 15")).to_be_visible()
    await page.wait_for_function(AT_END)
    newest, send = (page.get_by_role("button", name=name) for name in ("Newest", "Send"))
    await expect(newest).to_be_hidden()
    await page.mouse.wheel(0, -10_000)
    await expect(newest).to_be_in_viewport()  # as what is asked with, wherever one is
    await expect(send).to_be_in_viewport()
    assert not await page.evaluate(AT_END)
    await newest.click()
    await page.wait_for_function(AT_END)
    await page.mouse.wheel(0, -10_000)
    await expect(newest).to_be_visible()
    world.engine.release()
    await answered(page)
    await expect(newest).to_be_hidden()
    assert not await page.evaluate(AT_END)


@pytest.mark.exhaustive
async def test_code_and_answers_are_copied(page: Page, world: World) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    world.engine.answer = CODE
    await enter(page, world)
    await say(page, "How?")
    await answered(page)
    for name, text in (("Copy the code", "make serve\n"), ("Copy the answer", CODE)):
        copy = page.get_by_role("button", name=name)
        await copy.click()
        await expect(copy).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == text


async def test_the_first_screen_says_what_answers_how_to_have_better_and_how_to_begin(
    page: Page, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.routes.models.DEFAULT_MODEL", MODEL)
    await enter(page, world)
    welcome = page.get_by_role("region", name="Welcome")
    await expect(welcome).to_contain_text(f"{MODEL} answers.")
    await expect(welcome.locator("code").first).to_have_text("partywall models")
    await welcome.get_by_role("button").first.click()
    question = await page.get_by_label("Message").input_value()
    assert question
    await page.keyboard.press("Enter")
    await answered(page)
    await expect(page.locator(".message")).to_contain_text(question)
    await expect(welcome).to_be_hidden()
