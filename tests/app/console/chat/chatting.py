"""Somebody who chats in a page, and the tape of what its line has carried."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import Page, expect

from tests.app.conftest import World
from tests.app.console.signing_in import sign_in

# What a browser keeps, by the names of its stores.
STORED = """async () => {
  const opening = indexedDB.open("partywall");
  await new Promise((resolve) => { opening.onsuccess = resolve; });
  const database = opening.result;
  const all = {};
  for (const name of database.objectStoreNames) {
    const request = database.transaction(name).objectStore(name).getAllKeys();
    await new Promise((resolve) => { request.onsuccess = resolve; });
    all[name] = request.result;
  }
  database.close();
  return all;
}"""


async def enter(page: Page, world: World, tenant: str = "acme") -> None:
    await sign_in(page, world.base_url, world.keys[tenant])
    await connected(page)


async def connected(page: Page) -> None:
    await expect(page.locator(".state")).to_contain_text("Connected")


async def cut(page: Page) -> None:
    """As developers may."""
    drawer = page.get_by_text("Line and raw events")
    await drawer.click()
    await page.get_by_role("button", name="Cut the line").click()
    await expect(page.locator(".state")).to_contain_text("Reconnecting")
    await drawer.click()


async def set_up(page: Page, **fields: str) -> None:
    """Fill in settings of the conversation, by their names."""
    settings = page.locator(".settings > summary")
    await settings.click()
    if {"tools", "schema"} & set(fields):
        await page.get_by_text("Tools and formats").click()
    for name, value in fields.items():
        field = page.locator(f".settings [name={name}]")
        if await field.evaluate("one => one.tagName") == "SELECT":
            await field.select_option(value)
        else:
            await field.fill(value)
    if {"tools", "schema"} & set(fields):
        await page.get_by_text("Tools and formats").click()
    await settings.click()


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")


async def answered(page: Page, count: int = 1) -> None:
    """Wait until so many answers are shown, and none of them runs."""
    await expect(page.locator(".answer[aria-busy=false] .figures")).to_have_count(count)


async def hear_half(page: Page, world: World) -> None:
    """Of an answer that stops there, until the engine is told to go on."""
    world.engine.hold_after = 9
    await enter(page, world)
    await say(page, "Say it slowly")
    await expect(page.locator(".message")).to_have_text("You said:")


async def tape(page: Page) -> list[tuple[str, dict[str, Any]]]:
    said = await page.evaluate("() => document.getElementById('view-chat').line.tape")
    return [(who, message) for who, message in said]


def line(said: tuple[str, dict[str, Any]]) -> str:
    """A message as the tape has it: without what is another one each time."""
    who, message = said
    response = message.get("response")
    if response is not None:
        kept = ("status", "output", "usage", "previous_response_id")
        message = message | {"response": {name: response[name] for name in kept}}
    text = json.dumps(_unnamed(message), ensure_ascii=False)
    return f"{'>' if who == 'client' else '<'} {text}\n"


def _unnamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "..." if name in ("id", "item_id") else _unnamed(one)
            for name, one in value.items()
        }
    return [_unnamed(one) for one in value] if isinstance(value, list) else value


async def beside(page: Page, world: World, address: str) -> Page:
    """A second tab, in which the same key has signed in, at an address."""
    tab = await page.context.new_page()
    await tab.goto(f"{world.base_url}/console/")
    await tab.evaluate(
        "([key]) => sessionStorage.setItem('partywall.token', key)", [world.keys["acme"]]
    )
    await tab.goto(address)
    await tab.reload()
    await connected(tab)
    return tab
