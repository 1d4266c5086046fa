"""A browser, where one is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
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
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--disable-backgrounding-occluded-windows", "--disable-back-forward-cache"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-port=0"),
)
_START_SECONDS = 60.0


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one that all tests share: to start takes longer than most of them."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed: the console is not tested (apt install chromium)")
    profile = tmp_path_factory.mktemp("chromium")
    command = [found, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        told = profile / "DevToolsActivePort"
        deadline = time.monotonic() + _START_SECONDS
        while len(address := told.read_text().split() if told.exists() else []) < 2:
            assert time.monotonic() < deadline, "chromium does not start"
            time.sleep(0.02)
        yield "ws://127.0.0.1:{}{}".format(*address)
    finally:
        process.terminate()
        process.wait()


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
        browser = await playwright.chromium.connect_over_cdp(chromium)
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        page = await context.new_page()
        page.on("console", lambda message: hear(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        await context.close()
