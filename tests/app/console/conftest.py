"""A browser, where one is installed."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Page, async_playwright, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import World
from tests.app.pooled_engine import PooledEngine

# A page is slow on a machine that is busy: what is not seen by then will not be.
expect.set_options(timeout=30_000)
ADVICE = "willReadFrequently"
"""Of what the browser tells who reads a canvas twice: tests."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed: the console is not tested (apt install chromium)")
    return found


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What the page's console says, violations of its policy included: nothing, in the end."""
    heard: list[str] = []
    yield heard
    assert heard == []


@pytest.fixture
async def page(chromium: str, complaints: list[str], world: World) -> AsyncIterator[Page]:
    """A page that is closed before the world is."""

    def hear(text: str) -> None:
        if ADVICE not in text:
            complaints.append(text)

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        page = await context.new_page()
        page.on("console", lambda message: hear(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        await browser.close()
