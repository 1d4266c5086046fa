"""The adapters that a chat may choose from."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import MODEL, World
from tests.app.console.chatting import answered, enter, say
from tests.app.scripted_engine import ScriptedEngine
from tests.tenants.adapters.putting import put


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


async def test_a_chat_goes_on_with_an_adapter_that_is_chosen(page: Page, world: World) -> None:
    world.engine.linears = {"model.q_proj": (8, 8)}
    await put(world.stores.adapters, "acme", "rhyme")
    await enter(page, world)
    await expect(page.locator("#models option")).to_have_count(2)
    await say(page, "Hello")
    await answered(page)
    await page.locator("summary").filter(has_text="Settings").click()
    await page.get_by_label("Model, or with an adapter").fill(f"{MODEL}:rhyme")
    await say(page, "And now in rhyme?")
    await answered(page, 2)
    assert [one.adapter is not None for one in world.engine.requests] == [False, True]
