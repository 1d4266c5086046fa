"""Going down without losing anybody: refusals, farewells, suspended streams, and going on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.main import drain
from app.prompt.template import ChatTemplate
from app.service import create_app
from app.stores import Stores
from app.transport.bounds import Bounds
from app.upkeep.draining import Draining
from tenants.connection import open_redis
from tenants.embedded import EmbeddedStore
from tests.app.conftest import MODEL, PEPPER, STALL_SECONDS, World, eventually, serving
from tests.app.responses.test_responses_ws import Raw, socket, text_of
from tests.app.responses.test_resume import numbers, rest_by_socket, rest_by_sse
from tests.app.scripted_engine import ScriptedEngine

LONG = 60.0
AT_ONCE = 0.01


@contextlib.asynccontextmanager
async def draining(world: World, drain_seconds: float) -> AsyncIterator[asyncio.Event]:
    """The world goes down beside the block, which may hurry it, and is waited for."""
    hurry = asyncio.Event()
    going = asyncio.create_task(drain(world.app.state.service, drain_seconds, hurry))
    await eventually(lambda: world.app.state.service.draining.begun)
    try:
        yield hurry
        async with asyncio.timeout(10):
            await going
    finally:
        going.cancel()


@contextlib.asynccontextmanager
async def another(
    world: World, store_server: EmbeddedStore, engine: ScriptedEngine | None = None
) -> AsyncIterator[World]:
    """The service that starts after the world's has stopped, over the same store."""
    engine = engine or ScriptedEngine(world.engine.tokenizer)
    engine.answer = engine.answer or world.engine.answer
    redis = await open_redis(store_server.url, timeout_seconds=STALL_SECONDS)
    stores = Stores.over(redis, PEPPER)
    app = create_app(engine, stores, engine.tokenizer, MODEL, Bounds())
    async with serving(app) as (url,):
        yield dataclasses.replace(world, base_url=url, app=app, engine=engine, stores=stores)
    await redis.close()


@contextlib.asynccontextmanager
async def http_of(world: World, tenant: str = "acme") -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=world.base_url, headers=world.headers(tenant), trust_env=False, timeout=20
    ) as client:
        yield client


async def closing(ws: Raw) -> tuple[int, str]:
    """The close code and reason; what comes before them is read over."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await ws.receive()
    return ws.connection.close_code or 0, ws.connection.close_reason or ""


async def suspended(world: World, tokens: int, **fields: object) -> list[dict[str, Any]]:
    """The events of a stream that a restart interrupts after so many tokens."""
    world.engine.hold_after = tokens
    async with socket(world) as ws:
        await ws.create("Say it.", **fields)
        await eventually(lambda: bool(world.engine.active))
        seen = [await ws.receive() for _ in range(2 if not tokens else 4)]
        async with draining(world, AT_ONCE):
            seen += await ws.turn()
            assert (await closing(ws))[0] == 1012
    return seen


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


@pytest.mark.parametrize("by_socket", [True, False])
async def test_an_interrupted_stream_goes_on_after_the_restart(
    world: World, store_server: EmbeddedStore, by_socket: bool
) -> None:
    world.engine.answer = "a b c d e f g h"
    before = await suspended(world, 5)
    interim = before[-1]
    assert interim["type"] == "response.incomplete"
    assert interim["response"]["status"] == "incomplete"
    assert interim["response"]["incomplete_details"] == {"reason": "service_restart"}
    assert text_of([interim]) == "a b c"
    assert numbers(before) == list(range(len(before)))
    response_id = interim["response"]["id"]
    async with another(world, store_server) as after, http_of(after) as http:
        stored = (await http.get(f"/v1/responses/{response_id}")).json()
        assert stored == interim["response"]
        seen = before[:-3]  # the client has lost two deltas and the interim end
        last = numbers(seen)[-1]
        if by_socket:
            async with socket(after) as ws:
                rest = await rest_by_socket(ws, response_id, starting_after=last)
        else:
            rest = await rest_by_sse(http, response_id, last)
        assert rest[:2] == before[-3:-1]
        assert numbers(rest[2:])[0] == interim["sequence_number"] + 1
        expected = list(range(len(before) + len(rest) - 2))
        expected.remove(interim["sequence_number"])
        assert numbers(seen + rest) == expected
        assert "".join(event.get("delta", "") for event in seen + rest) == "a b c d e f g h"
        assert [event["type"] for event in seen + rest].count("response.output_text.done") == 1
        final = rest[-1]["response"]
        assert rest[-1]["type"] == "response.completed"
        assert text_of(rest) == "a b c d e f g h"
        assert final["usage"]["output_tokens"] == 16
        assert final["created_at"] == interim["response"]["created_at"]
        assert await rest_by_sse(http, response_id, interim["sequence_number"]) == rest[2:]
        assert (await http.get(f"/v1/responses/{response_id}")).json() == final
        (request,) = after.engine.requests
        assert after.engine.tokenizer.decode(request.generated_by(0)) == "a b c"
        continued = await http.post(
            "/v1/responses", json={"input": "x", "previous_response_id": response_id}
        )
        assert continued.status_code == 200


async def test_what_a_restart_interrupts_is_billed_once(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.answer = "a b c d e f g h"
    before = await suspended(world, 5)
    usage = before[-1]["response"]["usage"]
    prompt = usage["input_tokens"]
    assert usage["output_tokens"] == 5
    await world.metered("acme", 1, prompt + 5)
    async with another(world, store_server) as after, http_of(after) as http:
        rest = await rest_by_sse(http, before[-1]["response"]["id"])
        assert rest[-1]["response"]["usage"]["total_tokens"] == prompt + 16
        (day,) = await after.metered("acme", 1, prompt + 16)
    assert (day.prompt_tokens, day.output_tokens) == (prompt, 16)


async def test_a_stream_without_a_token_yet_goes_on_too_and_pays_for_its_prompt_once(
    world: World, store_server: EmbeddedStore
) -> None:
    before = await suspended(world, 0)
    assert before[-1]["response"]["output"] == []
    async with another(world, store_server) as after, http_of(after) as http:
        rest = await rest_by_sse(http, before[-1]["response"]["id"], 1)
        usage = rest[-1]["response"]["usage"]
        assert text_of(rest) == "You said: Say it."
        await after.metered("acme", 1, usage["total_tokens"])


@pytest.mark.parametrize("options", [{}, {"include": ["message.output_text.logprobs"]}])
async def test_wherever_it_is_interrupted_the_whole_is_the_same(
    world: World, store_server: EmbeddedStore, options: dict[str, Any]
) -> None:
    """Through characters of several bytes, and what looks like a stop string for a while."""
    world.engine.answer = "ein Fluß, ein Bá"
    body = {"input": "Say it.", "stop": ["ein B?", "STOP"], **options}
    responses = world.app.state.service.responses
    interrupted = []
    async with http_of(world) as http:
        whole = (await http.post("/v1/responses", json=body)).json()
        for cut in range(1, len(world.engine.answer.encode()), 2):
            world.engine.hold_after = cut
            reading = asyncio.create_task(http.post("/v1/responses", json=body | {"stream": True}))
            await eventually(lambda: bool(world.engine.holding))
            interrupted.append(world.engine.requests[-1].request_id)
            await responses.suspend()
            await reading
    expected = whole["output"][0]["content"]
    async with another(world, store_server) as after, http_of(after) as http:
        for response_id in interrupted:
            events = await rest_by_sse(http, response_id)
            final = events[-1]["response"]
            assert final["output"][0]["content"] == expected
            assert final["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
            # Found by the first engine; the second one has nothing cached.
            assert final["usage"]["input_tokens_details"]["cached_tokens"] == 16
            deltas = [event for event in events if event["type"] == "response.output_text.delta"]
            assert "".join(event["delta"] for event in deltas) == expected[0]["text"]
            shown = [logprob for event in deltas for logprob in event["logprobs"]]
            assert shown == expected[0]["logprobs"]


async def test_a_second_restart_interrupts_and_resumes_it_again(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.answer = "a b c d e f g h"
    first = (await suspended(world, 4))[:-1]
    response_id = first[0]["response"]["id"]
    engine = ScriptedEngine(world.engine.tokenizer)
    engine.hold_after = 9
    async with another(world, store_server, engine) as second, socket(second) as ws:
        after = numbers(first)[-1]
        resume = {"type": "response.resume", "response_id": response_id}
        await ws.send(resume | {"starting_after": after})
        middle = [await ws.receive() for _ in range(5)]
        async with draining(second, AT_ONCE):
            middle += (await ws.turn())[:-1]
    async with another(world, store_server) as third, http_of(third) as http:
        seen = first + middle
        rest = await rest_by_sse(http, response_id, numbers(seen)[-1])
    assert "".join(event.get("delta", "") for event in seen + rest) == "a b c d e f g h"
    assert numbers(seen + rest) == sorted(set(numbers(seen + rest)))
    assert text_of(rest) == "a b c d e f g h"


async def test_two_clients_that_resume_at_once_share_one_stream(
    world: World, store_server: EmbeddedStore
) -> None:
    before = await suspended(world, 3)
    response_id = before[0]["response"]["id"]
    async with another(world, store_server) as after, http_of(after) as http:
        one, other = await asyncio.gather(
            rest_by_sse(http, response_id), rest_by_sse(http, response_id, 2)
        )
        assert one[3:] == other
        assert len(after.engine.requests) == 1


async def test_what_cannot_go_on_now_can_later(world: World, store_server: EmbeddedStore) -> None:
    before = await suspended(world, 3)
    url = f"/v1/responses/{before[0]['response']['id']}?stream=true"
    async with another(world, store_server) as after, http_of(after) as http:
        async with http_of(after, "umbra") as stranger:
            assert (await stranger.get(url)).status_code == 404
        assert (await http.get(f"{url}&starting_after={len(before)}")).status_code == 400
        after.engine.down = True
        assert (await http.get(url)).json()["error"]["code"] == "engine_unavailable"
        after.engine.down = False
        await after.limit("acme", requests_per_minute=1, tokens_per_minute=1)
        limited = await http.get(url)
        assert (limited.status_code, limited.json()["error"]["code"]) == (
            429,
            "rate_limit_exceeded",
        )
        await after.limit("acme")
        assert not after.engine.requests
        answer = await http.get(url)
        assert "response.completed" in answer.text


async def test_another_model_does_not_go_on_with_it(
    world: World, store_server: EmbeddedStore
) -> None:
    class Retrained(ScriptedEngine):
        hash_extras = b"retrained"

    before = await suspended(world, 3)
    url = f"/v1/responses/{before[0]['response']['id']}?stream=true"
    engine = Retrained(world.engine.tokenizer)
    async with another(world, store_server, engine) as after, http_of(after) as http:
        assert (await http.get(url)).json()["error"]["code"] == "response_not_found"
    async with another(world, store_server) as after, http_of(after) as http:
        assert "response.completed" in (await http.get(url)).text


async def test_what_may_not_be_stored_ends_with_the_service(
    world: World, store_server: EmbeddedStore
) -> None:
    events = await suspended(world, 3, store=False)
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert events[-1]["response"]["incomplete_details"] == {"reason": "service_restart"}
    async with another(world, store_server) as after, http_of(after) as http:
        gone = await http.get(f"/v1/responses/{events[0]['response']['id']}?stream=true")
        assert gone.status_code == 404


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


async def test_an_abandoned_stream_is_suspended_like_any_other(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("one")
        response_id = (await ws.receive())["response"]["id"]
        ws.connection.transport.abort()
    async with draining(world, AT_ONCE):
        pass
    async with another(world, store_server) as after, http_of(after) as http:
        assert text_of(await rest_by_sse(http, response_id)) == "You said: one"


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

    async def waiting(template: ChatTemplate, *args: Any) -> list[int]:
        began.set()
        await may.wait()
        return await render(template, *args)

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
        await began.wait()
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
        await began.wait()
        async with draining(world, AT_ONCE):
            await eventually(lambda: world.engine.down)
            may.set()
            answer = await asked
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "shutting_down"
    assert not world.engine.requests
