"""Going down without losing anybody: refusals, farewells, streams that end in time or are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from app.limits.draining import Draining
from app.prompt.chat_template import ChatTemplate
from tests.app.background.restarts import AT_ONCE, LONG, closing, draining, http_of
from tests.app.conftest import MODEL, World, eventually
from tests.app.responses.test_responses_ws import socket, text_of


async def test_a_service_that_goes_down_takes_nothing_new_and_says_so(world: World) -> None:
    world.engine.hold_after = 2
    async with http_of(world) as http, socket(world) as busy, socket(world) as idle:
        await busy.create("one", stream_id="a")
        await busy.create("two", stream_id="a")
        await eventually(lambda: bool(world.engine.active))
        assert (await http.get("/readyz")).status_code == 200
        async with draining(world, LONG):
            assert await closing(idle) == (1012, "the service restarts")
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "draining")
            assert (await http.get("/healthz")).status_code == 200
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
            compact = {"model": MODEL, "input": "x"}
            for path, body in (
                ("responses", {"input": "x"}),
                ("chat/completions", chat),
                ("responses/compact", compact),
            ):
                refused = await http.post(f"/v1/{path}", json=body)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "shutting_down"
                assert int(refused.headers["retry-after"]) > 0
            with pytest.raises(InvalidStatus) as upgrade:
                async with socket(world):
                    pass
            assert upgrade.value.response.status_code == 503
            assert b"shutting_down" in upgrade.value.response.body
            await busy.create("three", stream_id="b")
            event = await busy.receive()
            while event["type"] != "error":
                event = await busy.receive()
            assert (event["status"], event["stream_id"]) == (503, "b")
            assert event["error"]["code"] == "shutting_down"

            world.engine.release()
            assert text_of(await busy.turn()) == "You said: one"
            assert (await busy.error())["error"]["code"] == "shutting_down"
            assert await closing(busy) == (1012, "the service restarts")
    assert len(world.engine.requests) == 1


async def test_running_streams_finish_in_time_over_either_protocol(world: World) -> None:
    world.engine.hold_after = 2
    async with http_of(world) as http, socket(world) as ws:
        await ws.create("one")
        streamed = asyncio.create_task(
            http.post("/v1/responses", json={"input": "two", "stream": True})
        )
        whole = asyncio.create_task(http.post("/v1/responses", json={"input": "three"}))
        await eventually(lambda: len(world.engine.active) == 3)
        async with draining(world, LONG):
            world.engine.release()
            assert text_of(await ws.turn()) == "You said: one"
            assert "You said: two" in (await streamed).text
            assert (await whole).json()["status"] == "completed"


async def test_a_hurry_suspends_what_would_have_had_time(world: World) -> None:
    world.engine.hold_after = 2
    async with socket(world) as ws:
        await ws.create("one")
        await eventually(lambda: bool(world.engine.active))
        async with draining(world, LONG) as hurry:
            hurry.set()
            last = (await ws.turn())[-1]
    assert last["response"]["incomplete_details"] == {"reason": "service_restart"}


async def test_a_stream_ends_for_good_where_the_store_is_down_as_well(world: World) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("one")
        seen = [await ws.receive() for _ in range(5)]
        with world.outage():
            async with draining(world, AT_ONCE):
                seen += await ws.turn()
    assert seen[-2]["type"] == "response.output_item.done"
    assert seen[-1]["response"]["incomplete_details"] == {"reason": "service_restart"}


async def test_completions_end_with_an_error_that_asks_to_try_again(world: World) -> None:
    world.engine.hold_after = 3
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    async with http_of(world) as http:
        streamed = asyncio.create_task(
            http.post("/v1/chat/completions", json=body | {"stream": True})
        )
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await eventually(lambda: len(world.engine.active) == 2)
        async with draining(world, AT_ONCE):
            last = (await streamed).text.strip().splitlines()[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
            assert (await whole).status_code == 503
            assert (await whole).json()["error"]["code"] == "shutting_down"


async def test_a_socket_that_opens_as_draining_begins_leaves_at_once(world: World) -> None:
    state: Draining = world.app.state.service.draining
    asked = []
    with state.socket(lambda: asked.append("early")):
        state.begin()
        with state.socket(lambda: asked.append("late")):
            assert asked == ["early", "late"]
    async with asyncio.timeout(1):
        await state.finished()


@pytest.mark.parametrize("model", [MODEL, "another"])
async def test_what_comes_when_all_is_over_is_told_so_whatever_else_is_wrong(
    world: World, model: str
) -> None:
    async with draining(world, AT_ONCE):
        pass
    async with http_of(world) as http:
        answer = await http.post("/v1/responses", json={"input": "one", "model": model})
    assert world.engine.down
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "shutting_down"


@pytest.fixture
def slow_template(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Templating says when it has begun, and waits until it may go on."""
    began, may = asyncio.Event(), asyncio.Event()
    render = ChatTemplate.prompt_ids

    async def waiting(template: ChatTemplate, *args: Any, **named: Any) -> list[int]:
        began.set()
        await may.wait()
        return await render(template, *args, **named)

    monkeypatch.setattr(ChatTemplate, "prompt_ids", waiting)
    return began, may


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "one"}]}


@pytest.mark.parametrize(
    ("path", "body"), [("responses", {"input": "one"}), ("chat/completions", CHAT)]
)
async def test_a_request_that_was_let_in_before_draining_is_served(
    world: World,
    slow_template: tuple[asyncio.Event, asyncio.Event],
    path: str,
    body: dict[str, Any],
) -> None:
    began, may = slow_template
    async with http_of(world) as http:
        asked = asyncio.create_task(http.post(f"/v1/{path}", json=body))
        await asyncio.wait_for(began.wait(), 10)
        async with draining(world, LONG):
            await asyncio.sleep(0.1)  # time enough to close the engine, had nobody counted it
            may.set()
            answer = await asked
    assert answer.status_code == 200
    assert "You said: one" in answer.text


async def test_a_request_whose_time_is_up_before_its_start_is_told_so(
    world: World, slow_template: tuple[asyncio.Event, asyncio.Event]
) -> None:
    began, may = slow_template
    async with http_of(world) as http:
        asked = asyncio.create_task(http.post("/v1/responses", json={"input": "one"}))
        await asyncio.wait_for(began.wait(), 10)
        async with draining(world, AT_ONCE):
            await eventually(lambda: world.engine.down)
            may.set()
            answer = await asked
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "shutting_down"
    assert not world.engine.requests
