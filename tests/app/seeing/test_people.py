"""Pictures in the console's chat, and in the terminal's."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import FilePayload, Page, expect

from bench.pictures.hostile import drawn, file_of
from tests.app.cli.test_chat_client import piped
from tests.app.conftest import World
from tests.app.console.chat.chatting import answered, enter, say
from tests.app.console.conftest import chromium as chromium
from tests.app.console.conftest import complaints as complaints
from tests.app.console.conftest import page as page
from tests.app.console.looks import check_page
from tests.app.seeing.conftest import CAT, HELLO, brought, shown, url

THREE, FIVE = f"<|mark|>{'<image>' * 3}<|mark|>", f"<|mark|>{'<image>' * 5}<|mark|>"
FILES = """([kind, files]) => {
  const given = new DataTransfer();
  for (const [name, type, text] of files) given.items.add(new File([text], name, { type }));
  const event = new Event(kind, { bubbles: true, cancelable: true });
  Object.assign(event, { clipboardData: given, dataTransfer: given });
  document.getElementById("question").dispatchEvent(event);
}"""


async def test_the_terminal_shows_files_with_the_first_question(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "hello.png").write_bytes(HELLO)
    (tmp_path / "cat.webp").write_bytes(CAT)
    options = [f"--image={tmp_path / name}" for name in ("hello.png", "cat.webp")]
    status, _, _ = await piped(world, "one\ntwo\n", *options)
    assert status == 0
    assert [len(request.pictures) for request in world.engine.requests] == [2, 2]
    assert shown(world) == [THREE, FIVE]
    status, _, told = await piped(world, "one\n", f"--image={tmp_path / 'none.png'}")
    assert status == 1
    assert "none.png cannot be read" in told


async def test_pictures_are_pasted_dropped_and_chosen(page: Page, world: World) -> None:
    await enter(page, world)
    await page.evaluate(FILES, ["paste", [["a.png", "image/png", HELLO.decode()]]])
    await expect(page.locator(".composer .pictures img")).to_have_count(1)
    await page.evaluate(
        FILES,
        ["drop", [["b.png", "image/png", CAT.decode()], ["c.txt", "text/plain", "no"]]],
    )
    await expect(page.locator(".composer .pictures img")).to_have_count(2)
    await expect(page.get_by_role("alert")).to_contain_text("c.txt is no picture")
    await page.get_by_label("Pictures to show").set_input_files(
        {"name": "d.png", "mimeType": "image/png", "buffer": b"1 gone"}
    )
    await expect(page.locator(".composer .pictures img")).to_have_count(3)
    await page.get_by_role("button", name="Remove").last.click()
    await say(page, "What are these?")
    await answered(page)
    assert (shown(world), brought(world)) == ([THREE, FIVE], [HELLO, CAT])
    assert await page.locator(".composer .pictures img").count() == 0
    images = page.locator(".turn .pictures img")
    assert [await one.get_attribute("src") for one in await images.all()] == [url(HELLO), url(CAT)]
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("Edited message").fill("And now?")
    await page.get_by_role("button", name="Ask this instead").click()
    await expect(page.get_by_text("2 of 2")).to_be_visible()
    await answered(page)
    assert shown(world) == [THREE, FIVE]


async def test_a_turn_with_pictures_shuts_nobody_out(page: Page, world: World) -> None:
    await page.set_viewport_size({"width": 360, "height": 900})
    await enter(page, world)
    large = file_of(drawn(width=900, height=200))
    chooser = page.get_by_label("Pictures to show")
    file: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": large}
    await chooser.set_input_files(file)
    await expect(page.locator(".composer .pictures img")).to_have_count(1)
    await say(page, "What is this?")
    await answered(page)
    await expect(page.locator(".problem").last).to_contain_text("is none of PNG")
    await chooser.set_input_files(file)
    await expect(page.locator(".composer .pictures img")).to_have_count(1)
    await check_page(page, 360)
