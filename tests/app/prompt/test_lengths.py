"""Prompts that are too long: refused by name, before they cost what they would."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import websockets

from app.prompt.chat_template import ChatTemplate
from app.prompt.plain_text import PlainText, TooManyTokens
from app.transport.bounds import Bounds
from app.wire.errors import ApiError
from app.workers import Workers
from tests.app.conftest import World, byte_tokenizer


class Counting(Workers):
    """Workers that count what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: list[str] = []

    async def run(self, tenant: str, work: Callable[[], Any]) -> Any:
        self.tenants.append(tenant)
        return await super().run(tenant, work)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is rendered."""
    texts: list[str] = []
    mark = PlainText.mark

    def spying(self: PlainText, text: str, role: str) -> str:
        texts.append(text)
        return mark(self, text, role)

    monkeypatch.setattr(PlainText, "mark", spying)
    return texts


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses", {"input": "x" * 40_000}, "input"),
        ("/v1/responses", {"input": "x", "instructions": "x" * 40_000}, "instructions"),
        ("/v1/responses", {"input": "x" * 30_000, "instructions": "x" * 20_000}, "input"),
        ("/v1/responses", {"input": [{"role": "user", "content": "x" * 4000}] * 10}, "input"),
        (
            "/v1/chat/completions",
            {"model": "Scripted-1", "messages": [{"role": "user", "content": "x" * 40_000}]},
            "messages",
        ),
    ],
)
async def test_more_text_than_the_context_can_spell_is_refused_before_it_is_rendered(
    world: World, seen: list[str], path: str, body: dict[str, Any], param: str
) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert not seen


@pytest.mark.parametrize("tokens", [2_040, 2_500])
async def test_the_longer_of_input_and_instructions_is_named_where_their_tokens_are_too_many(
    world: World, tokens: int
) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        for longer, shorter in (("instructions", "input"), ("input", "instructions")):
            answer = await http.post("/v1/responses", json={longer: "x" * tokens, shorter: "x"})
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", longer)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact"])
@pytest.mark.parametrize("field", [{"input": "x" * 40_000}, {"input": 1, "x": "x" * 40_000}])
async def test_nothing_of_a_refused_request_stays_in_memory(
    world: World, path: str, field: dict[str, Any]
) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        gc.freeze()  # what was there before is not looked at
        gc.disable()
        try:
            answer = await http.post(path, json={"model": "Scripted-1", **field})
            assert answer.status_code == 400
            await asyncio.sleep(0.05)
            kept = [one for one in gc.get_objects() if isinstance(one, ApiError)]
            assert not kept
        finally:
            gc.enable()
            gc.unfreeze()


def test_a_text_is_tokenized_only_as_far_as_needed_to_refuse_it() -> None:
    texts = PlainText(byte_tokenizer())
    for most in (10, 70_000):
        with pytest.raises(TooManyTokens) as refused:
            texts.encode("x" * 3_000_000, most)
        assert most < int(str(refused.value)) <= most + 65_536


@pytest.mark.parametrize("length", [1, 9, 10])
def test_a_text_that_just_fits_is_tokenized(length: int) -> None:
    texts = PlainText(byte_tokenizer())
    assert len(texts.encode("x" * length, 10)) == length
    marked = texts.mark("<|im_end|>", "user")
    assert len(texts.encode(marked, 10)) == 10
    with pytest.raises(TooManyTokens):
        texts.encode(marked + "x", 10)


async def test_long_prompts_leave_the_event_loop_and_short_ones_do_not() -> None:
    counting = Counting()
    template = ChatTemplate(byte_tokenizer(), counting, 100_000)
    for length, tenants in ((100, []), (50_000, ["acme"])):
        ids = await template.prompt_ids("acme", [{"role": "user", "content": "x" * length}], "")
        assert len(ids) > length
        assert counting.tenants == tenants
    counting.close()


@pytest.mark.parametrize("limits", [Bounds(max_message_bytes=2000)])
async def test_a_socket_holds_bytes_not_only_messages_that_wait(world: World) -> None:
    world.engine.hold_after = 1
    create = {"type": "response.create", "input": "x" * 800, "max_output_tokens": 8}
    async with (
        asyncio.timeout(10),
        websockets.connect(world.ws_url, additional_headers=world.headers()) as socket,
    ):
        await socket.send(json.dumps(create))
        while json.loads(await socket.recv())["type"] != "response.output_text.delta":
            pass  # it runs, and waits no more
        for _ in range(3):
            await socket.send(json.dumps(create))
        refusal = json.loads(await socket.recv())
        assert (refusal["type"], refusal["status"]) == ("error", 429)
        assert refusal["error"]["code"] == "inbox_full"
        world.engine.release()
        ended = 0
        while ended < 3:
            event = json.loads(await socket.recv())
            assert event["type"] != "error"
            ended += event["type"] in ("response.completed", "response.incomplete")
