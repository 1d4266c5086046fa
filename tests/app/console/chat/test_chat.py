"""A chat in a browser: streamed, resumed, forked, and rendered so that nothing of it can run."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, Route, expect
from transformers import PreTrainedTokenizerBase
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.app.conftest import ADMIN_TOKEN, World, eventually
from tests.app.console.chat.chatting import (
    answered,
    connected,
    cut,
    enter,
    hear_half,
    line,
    say,
    set_up,
    tape,
)
from tests.app.console.keeping import is_updating
from tests.app.console.looks import check_looks, check_page
from tests.app.console.signing_in import sign_in
from tests.app.scripted_engine import ScriptedEngine

TAPE = Path(__file__).with_name("tape.txt")
HOSTILE = (
    "**Well**, <img src=x onerror=alert(1)><script>alert(1)</script> "
    "[here](javascript:alert(1)) or [there](https://example.org) <b onclick=alert(1)>b</b>\n\n"
    "one<br>two\n\n```\n<i>code</i>\n```\n"
)
DEEP = ">" * 5000
TELL = """(delta) => document.getElementById("view-chat").line.hear({
  type: "response.output_text.delta", output_index: 0, stream_id: "chat-1", delta })"""
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


async def test_an_answer_streams_and_is_shown_without_what_could_run(
    page: Page, world: World
) -> None:
    world.engine.answer = HOSTILE
    await enter(page, world)
    await say(page, "Hello <b>you</b>")
    await answered(page)
    message = page.locator(".message")
    assert await message.locator("strong").inner_text() == "Well"
    assert await message.locator("code").inner_text() == "<i>code</i>\n"
    links = [await one.get_attribute("href") for one in await message.locator("a").all()]
    assert links == [None, "https://example.org"]
    assert await message.locator("img, script, b, [onclick], [onerror]").count() == 0
    assert await message.locator("br").count() == 1
    assert "<b onclick=alert(1)>b</b>" in await message.inner_text()
    assert await page.locator(".said").inner_text() == "Hello <b>you</b>"
    await say(page, "And again?")
    await answered(page, 2)
    figures = page.locator(".figures").last
    await expect(figures).to_contain_text("first token after")
    await expect(figures).to_contain_text("prompt tokens cached")
    assert " 0 of" not in await figures.inner_text()


async def test_a_cut_line_is_mended_and_no_event_is_lost(page: Page, world: World) -> None:
    await hear_half(page, world)
    await cut(page)
    await connected(page)
    world.engine.release()
    await answered(page)
    await expect(page.locator(".message")).to_have_text("You said: Say it slowly")
    said = await tape(page)
    assert [one["type"] for who, one in said if who == "client"] == [
        "response.create",
        "response.resume",
    ]
    numbers = [one["sequence_number"] for who, one in said if who == "server"]
    assert numbers == list(range(len(numbers)))
    assert len(world.engine.requests) == 1


@pytest.mark.exhaustive
async def test_edits_and_second_answers_are_forks(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    await say(page, "two")
    await answered(page, 2)
    await page.get_by_role("button", name="Answer again").last.click()
    await expect(page.get_by_text("2 of 2")).to_be_visible()
    await answered(page, 2)
    await page.get_by_role("button", name="Edit").first.click()
    await page.get_by_label("Edited message").fill("uno")
    await page.get_by_role("button", name="Ask this instead").click()
    await expect(page.locator(".message")).to_have_text(["You said: uno"])
    await page.get_by_role("button", name="The version before").click()
    await expect(page.locator(".message")).to_have_text(["You said: one", "You said: two"])
    requests = [one for who, one in await tape(page) if who == "client"]
    created = [one for who, one in await tape(page) if one["type"] == "response.created"]
    ids = [one["response"]["id"] for one in created]
    assert [one.get("previous_response_id") for one in requests] == [None, ids[0], ids[0], None]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["button", "Escape"])
async def test_an_answer_is_stopped_and_gone_on_from(page: Page, world: World, way: str) -> None:
    await hear_half(page, world)
    if way == "Escape":
        await page.get_by_label("Message").press(way)
    else:
        await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".figures")).to_contain_text("stopped")
    world.engine.release()
    await say(page, "Go on")
    await answered(page, 2)
    assert not world.engine.active


@pytest.mark.exhaustive
async def test_nothing_is_asked_beside_a_version_that_runs_unseen(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "one")
    await answered(page)
    world.engine.hold_after = 9
    await page.get_by_role("button", name="Answer again").click()
    await expect(page.get_by_text("2 of 2")).to_be_visible()
    await page.get_by_role("button", name="The version before").click()
    await say(page, "two")
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    world.engine.release()
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert await page.get_by_label("Message").input_value() == "two"
    await page.keyboard.press("Enter")
    await answered(page, 2)
    assert len(world.engine.requests) == 3


@pytest.mark.exhaustive
async def test_an_answer_that_is_nested_too_deep_is_shown_as_it_is(
    page: Page, world: World
) -> None:
    await enter(page, world)
    world.engine.hold_after = 3
    await say(page, "Go deep")
    await expect(page.locator(".message")).to_have_count(1)
    await page.evaluate(TELL, f"\n\n{DEEP}")
    world.engine.release()
    await answered(page)
    await expect(page.locator(".message pre")).to_contain_text(DEEP)


@pytest.mark.exhaustive
async def test_who_stops_while_the_line_is_broken_has_stopped(page: Page, world: World) -> None:
    await hear_half(page, world)
    await cut(page)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".figures")).to_contain_text("stopped")
    assert not world.engine.active


@pytest.mark.exhaustive
async def test_what_is_no_key_is_refused_and_a_late_one_not_kept(page: Page, world: World) -> None:
    async def late(route: Route) -> None:
        if route.request.method == "POST":
            await asyncio.sleep(1)
        await route.continue_()

    await sign_in(page, world.admin_url, view="chat")
    for wrong in ("my key", "pw_é", world.keys["acme"] + ",b"):
        await page.locator("#view-chat [name=key]").fill(wrong)
        await page.get_by_role("button", name="Use it").click()
        await expect(page.locator("#view-chat [role=alert]")).to_contain_text("no API key")
    await page.route("**/admin/tenants/*/keys", late)
    async with page.expect_response("**/admin/tenants/acme/keys"):
        await page.get_by_role("button", name="Make a key").click()
        await page.get_by_role("button", name="Sign out").click()
    await asyncio.sleep(0.5)
    assert await page.evaluate("sessionStorage.length") == 0


@pytest.mark.exhaustive
async def test_conversations_run_beside_each_other_on_one_socket(page: Page, world: World) -> None:
    world.engine.hold_after = 3
    await enter(page, world)
    await say(page, "first")
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "second")
    await eventually(lambda: len(world.engine.active) == 2)
    world.engine.release()
    await expect(page.locator(".message")).to_have_text(["You said: second"])
    await page.get_by_role("link", name="first").click()
    await expect(page.locator(".message")).to_have_text(["You said: first"])
    assert {one["stream_id"] for _, one in await tape(page)} == {"chat-1", "chat-2"}


@pytest.mark.exhaustive
async def test_calls_are_shown_and_answered(page: Page, world: World) -> None:
    await enter(page, world)
    await set_up(page, tools="[no JSON")
    await say(page, "Look!")
    await expect(page.get_by_role("alert").last).to_contain_text("Tools:")
    await set_up(page, tools=json.dumps(FUNCTION))
    world.engine.answer = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    await say(page, "Look!")
    await expect(page.locator(".call")).to_contain_text("Calls look")
    await expect(page.locator(".call code")).to_have_text('{\n  "at": 1\n}')
    world.engine.answer = "I see."
    await page.get_by_label("Result of look").fill("a wall")
    await page.get_by_role("button", name="Send results").click()
    await expect(page.locator(".message")).to_have_text("I see.")
    await expect(page.locator(".said").last).to_have_text("look: a wall")


@pytest.mark.exhaustive
async def test_the_text_of_a_custom_tool_is_shown_as_it_is(page: Page, world: World) -> None:
    await enter(page, world)
    grammar = {"type": "grammar", "syntax": "regex", "definition": r"(.|\n)+"}
    tool = {"type": "custom", "name": "run", "format": grammar}
    await set_up(page, tools=json.dumps(tool))
    world.engine.answer = '<tool_call>\n{"name": "run"}\n{"a":1}\n<b>2</b>'
    await say(page, "Run!")
    await expect(page.locator(".call")).to_contain_text("Calls run")
    await expect(page.locator(".call code")).to_have_text('{"a":1}\n<b>2</b>')
    world.engine.answer = "It ran."
    await page.get_by_label("Result of run").fill("3")
    await page.get_by_role("button", name="Send results").click()
    await expect(page.locator(".message")).to_have_text("It ran.")
    await expect(page.locator(".said").last).to_have_text("run: 3")


@pytest.mark.exhaustive
async def test_answers_by_a_schema_are_laid_out(page: Page, world: World) -> None:
    await enter(page, world)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await set_up(page, schema=json.dumps(schema))
    world.engine.answer = '{"a":1}'
    await say(page, "Count")
    await expect(page.locator(".message code")).to_have_text('{\n  "a": 1\n}')


@pytest.mark.exhaustive
async def test_an_operator_makes_a_key_and_picks_a_registered_prompt(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await world.register("umbra", "desk", "You are at the desk. " * 4)
    await sign_in(page, world.admin_url, view="chat")
    await page.get_by_label("Tenant").select_option("umbra")
    await page.get_by_role("button", name="Make a key").click()
    await connected(page)
    keys = (await admin.get("/tenants/umbra/keys")).json()["keys"]
    assert [key["name"] for key in keys if key["expires_at"]] == ["console"]
    await set_up(page, prompt="desk")
    await say(page, "Hello")
    await answered(page)
    assert world.engine.requests[-1].tenant == "umbra"
    assert "You are at the desk" in world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    await page.get_by_role("link", name="The wall").click()
    await page.get_by_role("link", name="Chat").click()
    await expect(page.locator(".message")).to_have_text("You said: Hello")
    await page.close()
    assert [one for one in complaints if "503" not in one] == []
    complaints.clear()  # this engine has no blocks to show on the wall


@pytest.mark.exhaustive
async def test_a_tenant_is_offered_its_prompts_and_fills_them_in(page: Page, world: World) -> None:
    await world.register("acme", "desk", "You are at the desk of {{who}}. " * 3)
    await world.register("umbra", "secret", "Of somebody else.")
    await enter(page, world)
    await page.get_by_text("Settings of this conversation").click()
    begins = page.get_by_label("Begins with")
    await expect(begins.locator("option")).to_have_text(["A text of one's own, or none", "desk"])
    await begins.select_option("desk")
    await expect(page.get_by_label("System text")).to_be_hidden()
    await check_page(page, 1440)
    await say(page, "Hello")
    await expect(page.get_by_role("alert")).to_contain_text("Fill in who")
    await page.get_by_label("who", exact=True).fill("ACME")
    await page.get_by_label("Message").press("Enter")
    await expect(page.locator(".message")).to_have_text("You said: Hello")
    assert "desk of ACME" in world.engine.tokenizer.decode(world.engine.requests[-1].prompt)


@pytest.mark.exhaustive
async def test_a_key_that_ends_leads_back_to_where_one_signs_in(
    page: Page, world: World, admin: httpx.AsyncClient, complaints: list[str]
) -> None:
    await enter(page, world)
    assert (await admin.patch("/tenants/acme", json={"status": "disabled"})).is_success
    await expect(page.get_by_role("alert")).to_have_text("This tenant is disabled.")
    await expect(page.get_by_label("API key or admin token")).to_be_focused()
    await page.close()
    complaints.clear()  # the browser tells of each handshake that is refused


@pytest.mark.parametrize(
    ("token", "key", "status"),
    [
        (ADMIN_TOKEN, True, None),
        (ADMIN_TOKEN, False, 401),
        ("of nobody", True, 401),
        ("", True, 401),
    ],
)
async def test_the_operators_port_chats_with_operators_alone(
    world: World, token: str, key: bool, status: int | None
) -> None:
    encoded = urlsafe_b64encode(token.encode()).decode().rstrip("=")
    protocols = [f"partywall.operator.{encoded}"] if token else []
    protocols += ["partywall.v1", *([f"partywall.key.{world.keys['acme']}"] if key else [])]
    url = f"{world.admin_url.replace('http', 'ws')}/console/responses"
    opening = connect(url, subprotocols=protocols, proxy=None)
    if status is None:
        async with opening as socket:
            assert socket.subprotocol == "partywall.v1"
    else:
        with pytest.raises(InvalidStatus) as refused:
            await opening
        assert refused.value.response.status_code == status


async def test_an_operators_chat_ends_with_their_token(
    world: World, admin: httpx.AsyncClient
) -> None:
    made = (await admin.post("/tokens", json={"name": "bob", "role": "admin"})).json()
    encoded = urlsafe_b64encode(made["admin_token"].encode()).decode().rstrip("=")
    protocols = ["partywall.v1", f"partywall.key.{world.keys['acme']}"]
    async with connect(
        f"{world.admin_url.replace('http', 'ws')}/console/responses",
        subprotocols=[*protocols, f"partywall.operator.{encoded}"],
        proxy=None,
    ) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
        while json.loads(await socket.recv())["type"] != "response.completed":
            pass
        assert (await admin.delete(f"/tokens/{made['id']}")).status_code == 204
        async with asyncio.timeout(20):
            await socket.wait_closed()
        assert socket.close_code == 1008
        assert "operator" in (socket.close_reason or "")


@pytest.mark.exhaustive
async def test_why_a_prompt_was_not_found(page: Page, world: World) -> None:
    await enter(page, world)
    await say(page, "Something that takes more than a block of tokens to be said")
    await answered(page)
    await page.get_by_role("button", name="New conversation").click()
    await say(page, "Anything that takes more than a block of tokens to be said")
    await answered(page)
    await expect(page.locator(".figures")).to_contain_text("what is said differs behind token")


@pytest.mark.exhaustive
async def test_a_chat_shuts_nobody_out(page: Page, world: World, tmp_path: Path) -> None:
    await enter(page, world)
    brief = "You know the catalog of ACME. Be brief."
    await set_up(page, instructions=brief, tools=json.dumps(FUNCTION))
    world.engine.answer = (
        '<tool_call>\n{"name": "look", "arguments": {"for": "glue"}}\n</tool_call>'
    )
    await say(page, "Which glue is there?")
    await expect(page.locator(".call")).to_contain_text("Calls look")
    await page.get_by_label("Result of look").fill("wood glue, bone glue")
    world.engine.answer = "There are **two** kinds:\n\n1. wood glue\n2. bone glue\n"
    await page.get_by_role("button", name="Send results").click()
    await answered(page, 2)
    await say(page, "Thank you!")
    await answered(page, 3)
    await page.get_by_role("button", name="Answer again").last.click()
    await expect(page.get_by_text("2 of 2")).to_be_visible()
    await answered(page, 3)
    await check_looks(page, "chat", tmp_path, is_whole=False)


async def test_the_tape_of_a_chat(page: Page, world: World) -> None:
    world.engine.answer = "Ho."
    await enter(page, world)
    await set_up(page, instructions="Be brief.")
    await say(page, "Hi")
    await answered(page)
    text = "".join(map(line, await tape(page)))
    if is_updating():
        TAPE.write_text(text)
    assert text == TAPE.read_text()
