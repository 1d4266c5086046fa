"""What everybody can expect of a view, at the ends of the widths that it is made for."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.app.console.keeping import PICTURES, is_updating

# In the second frame from now on, what watches sizes has been told of them, and has drawn.
_SETTLED = """() => new Promise((resolve) =>
  requestAnimationFrame(() => requestAnimationFrame(resolve)))"""
_WIDE = """(width) => [...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > width && !one.closest(".scroll"))
  .map((one) => `${one.localName}.${one.className}`).join(" ")"""
_TO_THE_END = "window.scrollTo(0, document.body.scrollHeight)"
_WIDTHS = (360, 1440)
_SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
_PICTURED = {(360, "dark"), (1440, "light")}


async def check_looks(page: Page, name: str, scratch: Path, *, is_whole: bool = True) -> None:
    """Nothing shuts somebody out or is cut off; makes the pictures of the documentation, of all of
    the page, or of what one sees at its end.
    """
    folder = PICTURES if is_updating() else scratch
    for width, scheme in product(_WIDTHS, _SCHEMES):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.emulate_media(color_scheme=scheme)
        await page.evaluate(_SETTLED)
        await check_page(page, width)
        if (width, scheme) not in _PICTURED:
            continue
        await page.evaluate(_TO_THE_END)
        if is_whole:
            await page.evaluate("window.scrollTo(0, 0)")
        picture = folder / f"console-{name}-{width}.png"
        await page.screenshot(path=picture, full_page=is_whole)


async def check_page(page: Page, width: int) -> None:
    """axe finds nothing, and nothing is wider than the page."""
    deadline = time.monotonic() + 30
    # A view that has much to show is laid out again in turns.
    while await page.evaluate("document.documentElement.scrollWidth") > width:
        assert time.monotonic() < deadline, await page.evaluate(_WIDE, width)
        await page.evaluate(_SETTLED)
    found = await Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
