"""What a restart interrupts goes on in the next service, word for word, and is billed once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.generation.begin import Generations
from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import AT_ONCE, another, draining, http_of, suspended
from tests.app.conftest import MODEL, World, eventually
from tests.app.responses.test_responses_ws import socket, text_of
from tests.app.responses.test_resume import numbers, rest_by_socket, rest_by_sse
from tests.app.scripted_engine import ScriptedEngine
from tests.tenants.adapters.putting import put


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


async def test_what_goes_on_after_a_restart_goes_on_as_its_adapters(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.answer = "a b c d e f g h"
    world.engine.linears = {"model.q_proj": (8, 8)}
    await put(world.stores.adapters, "acme", "rhyme")
    before = await suspended(world, 5, model=f"{MODEL}:rhyme")
    engine = ScriptedEngine(world.engine.tokenizer)
    engine.linears = world.engine.linears
    async with another(world, store_server, engine) as after, http_of(after) as http:
        rest = await rest_by_sse(http, before[-1]["response"]["id"])
        (day,) = await after.metered("acme", 1, rest[-1]["response"]["usage"]["total_tokens"])
        (part,) = await after.stores.usage.read_by_adapter("acme", day.day, day.day)
    assert (part.adapter, part.requests) == ("rhyme", 1)
    assert (part.prompt_tokens, part.output_tokens) == (day.prompt_tokens, day.output_tokens)
    assert part.output_tokens == 16


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


async def test_a_background_response_goes_on_when_it_is_asked_for(
    world: World, store_server: EmbeddedStore
) -> None:
    world.engine.answer = "a b c d e f g h"
    before = await suspended(world, 5, background=True)
    path = f"/v1/responses/{before[-1]['response']['id']}"
    async with another(world, store_server) as after, http_of(after) as http:
        found = (await http.get(path)).json()
        async with asyncio.timeout(10):
            while found["status"] != "completed":
                assert found["incomplete_details"] is None, "it runs"
                found = (await http.get(path)).json()
        assert found["output"][0]["content"][0]["text"] == "a b c d e f g h"
        assert len(after.engine.requests) == 1
        listed = (await http.get(f"{path}/input_items")).json()["data"]
        assert [item["content"][0]["text"] for item in listed] == ["Say it."]


async def test_an_interrupted_response_is_shown_where_it_cannot_go_on_now(
    world: World, store_server: EmbeddedStore
) -> None:
    before = await suspended(world, 3, background=True)
    path = f"/v1/responses/{before[-1]['response']['id']}"
    async with another(world, store_server) as after, http_of(after) as http:
        after.engine.down = True
        found = await http.get(path)
        assert (found.status_code, found.json()["status"]) == (200, "incomplete")
        after.engine.down = False
        assert (await http.get(path)).json()["incomplete_details"] is None, "it runs"


async def test_a_deleted_response_does_not_go_on(world: World, store_server: EmbeddedStore) -> None:
    before = await suspended(world, 3, background=True)
    path = f"/v1/responses/{before[-1]['response']['id']}"
    async with another(world, store_server) as after, http_of(after) as http:
        async with http_of(after, "umbra") as stranger:
            assert (await stranger.delete(path)).status_code == 404
        assert (await http.delete(path)).json()["deleted"]
        for gone in (f"{path}?stream=true", path):
            assert (await http.get(gone)).status_code == 404
        assert (await http.delete(path)).status_code == 404
        assert not after.engine.requests


async def test_an_interrupted_response_can_be_cancelled(
    world: World, store_server: EmbeddedStore
) -> None:
    before = await suspended(world, 3, background=True)
    path = f"/v1/responses/{before[-1]['response']['id']}"
    async with another(world, store_server) as after, http_of(after) as http:
        async with http_of(after, "umbra") as stranger:
            assert (await stranger.post(f"{path}/cancel")).status_code == 404
        cancelled = (await http.post(f"{path}/cancel")).json()
        assert (cancelled["status"], cancelled["incomplete_details"]) == ("cancelled", None)
        assert (await http.get(path)).json() == cancelled
        assert (await http.post(f"{path}/cancel")).json() == cancelled
        assert (await http.get(f"{path}?stream=true")).status_code == 404
        assert not after.engine.requests


async def test_a_response_that_is_being_taken_over_is_deleted_behind_that(
    world: World, store_server: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await suspended(world, 3, background=True)
    path = f"/v1/responses/{before[-1]['response']['id']}"
    go_on, begun, may_go_on = Generations.go_on, asyncio.Event(), asyncio.Event()

    async def slowly(*arguments: Any) -> Any:
        begun.set()
        await may_go_on.wait()
        return await go_on(*arguments)

    monkeypatch.setattr(Generations, "go_on", slowly)
    async with another(world, store_server) as after, http_of(after) as http:
        after.engine.hold_after = 1
        reading = asyncio.create_task(http.get(path))
        await begun.wait()
        deleting = asyncio.create_task(http.delete(path))
        await asyncio.wait({deleting}, timeout=0.2)
        may_go_on.set()
        assert (await deleting).json()["deleted"]
        await reading
        assert not after.engine.active
        assert (await http.get(path)).status_code == 404
