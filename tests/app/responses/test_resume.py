"""Streams that outlive their readers: cut, resumed over either protocol, followed by several."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from app.prompt.history import History
from app.responses.run import ResponseRun
from app.transport.bounds import Bounds
from app.wire.errors import ApiError
from app.wire.events import TextDelta, encode_json, event_type, on_lane
from tests.app.conftest import World, eventually
from tests.app.responses.test_responses_ws import TERMINAL, Raw, socket

CUTS = 500
STREAMS = 20


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=world.base_url, headers=world.headers(), trust_env=False, timeout=20
    ) as client:
        yield client


async def events_of(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


async def rest_by_sse(
    http: httpx.AsyncClient, response_id: str, after: int | None = None
) -> list[dict[str, Any]]:
    """Every event after number `after`, to the end."""
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    async with http.stream("GET", f"/v1/responses/{response_id}", params=query) as answer:
        assert answer.status_code == 200, await answer.aread()
        return [event async for event in events_of(answer)]


async def rest_by_socket(ws: Raw, response_id: str, **fields: object) -> list[dict[str, Any]]:
    await ws.send({"type": "response.resume", "response_id": response_id, **fields})
    return await ws.turn()


def run_of(world: World, response_id: str, tenant: str = "acme") -> ResponseRun:
    run = world.app.state.service.responses.running(world.tenants[tenant], response_id)
    assert run is not None
    return run


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["sequence_number"] for event in events]


def without_lane(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in event.items() if k != "stream_id"} for event in events]


async def test_what_was_missed_comes_as_it_was_and_then_the_rest_live(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.hold_after = 5
    async with socket(world) as first:
        await first.create("one")
        seen = [await first.receive() for _ in range(6)]
        first.connection.transport.abort()
    response_id = seen[0]["response"]["id"]
    by_sse = asyncio.create_task(rest_by_sse(http, response_id, 2))
    async with socket(world) as second:
        resume = {"type": "response.resume", "response_id": response_id, "starting_after": 2}
        await second.send(resume | {"stream_id": "again"})
        replayed = [await second.receive() for _ in range(3)]
        assert without_lane(replayed) == seen[3:]
        assert {event["stream_id"] for event in replayed} == {"again"}
        world.engine.release()
        rest = replayed + await second.turn()
    assert numbers(seen[:3] + rest) == list(range(3 + len(rest)))
    assert rest[-1]["type"] == "response.completed"
    assert await by_sse == without_lane(rest)
    assert await rest_by_sse(http, response_id) == seen[:3] + without_lane(rest)


@contextlib.asynccontextmanager
async def connected(
    world: World,
    http: httpx.AsyncClient,
    by_socket: bool,
    text: str,
    response_id: str | None,
    after: int,
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of a new or a resumed response, over a connection of their own."""
    starting = {} if after < 0 else {"starting_after": after}
    if by_socket:
        async with socket(world) as ws:
            if response_id is None:
                await ws.create(text)
            else:
                resume = {"type": "response.resume", "response_id": response_id}
                await ws.send(resume | starting)
            yield received(ws)
            ws.connection.transport.abort()
        return
    if response_id is None:
        body = {"input": text, "stream": True}
        request = http.build_request("POST", "/v1/responses", json=body)
    else:
        url = f"/v1/responses/{response_id}"
        request = http.build_request("GET", url, params={"stream": "true", **starting})
    answer = await http.send(request, stream=True)
    assert answer.status_code == 200
    yield events_of(answer)
    await answer.aclose()


async def received(ws: Raw) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield await ws.receive()


async def cut_again_and_again(
    world: World, http: httpx.AsyncClient, chance: random.Random, text: str, cuts: int
) -> list[dict[str, Any]]:
    """A client that loses its connection `cuts` times; what it has read in the end."""
    seen: list[dict[str, Any]] = []
    for cut in range(cuts + 1):
        last = cut == cuts
        # The first connection stays until the response has told its id.
        enough = chance.randint(0 if seen else 1, 12)
        response_id = seen[0]["response"]["id"] if seen else None
        after = len(seen) - 1
        reading = connected(world, http, chance.random() < 0.5, text, response_id, after)
        async with reading as events:
            while last or enough:
                seen.append(await anext(events))
                assert seen[-1]["type"] != "error", seen[-1]
                enough -= 1
                if seen[-1]["type"] in TERMINAL:
                    break
    return seen


@pytest.mark.parametrize("limits", [Bounds(resume_grace_seconds=20.0)])
async def test_no_event_is_lost_or_doubled_over_500_random_cuts(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.token_seconds = 0.004
    texts = [f"{stream} " + "lorem ipsum " * 25 for stream in range(STREAMS)]
    read = await asyncio.gather(
        *(
            cut_again_and_again(world, http, random.Random(stream), text, CUTS // STREAMS)
            for stream, text in enumerate(texts)
        )
    )
    for text, events in zip(texts, read, strict=True):
        assert numbers(events) == list(range(len(events)))
        deltas = "".join(event.get("delta", "") for event in events)
        assert deltas == f"You said: {text}"
        assert events[-1]["type"] == "response.completed"
        response_id = events[0]["response"]["id"]
        assert events == await rest_by_sse(http, response_id)
    assert len(world.engine.requests) == STREAMS, "no cut has started anything anew"


async def vanish(world: World, http: httpx.AsyncClient, chance: random.Random) -> None:
    """A client that leaves for good wherever it happens to be."""
    with contextlib.suppress(httpx.HTTPError):
        reading = connected(world, http, chance.random() < 0.5, "hello " * 9, None, -1)
        async with reading as events:
            for _ in range(chance.randint(0, 40)):
                if (await anext(events))["type"] in TERMINAL:
                    break


@pytest.mark.parametrize("limits", [Bounds(resume_grace_seconds=0.2)])
async def test_clients_that_vanish_leave_nothing_behind(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.token_seconds = 0.002
    await vanish(world, http, random.Random(0))
    await eventually(lambda: not world.engine.active)
    await asyncio.sleep(0.5)
    before = len(asyncio.all_tasks())
    chance = random.Random(1)
    for _ in range(4):
        await asyncio.gather(*(vanish(world, http, chance) for _ in range(25)))
    await eventually(lambda: not world.engine.active)
    await eventually(lambda: len(asyncio.all_tasks()) <= before)
    await eventually(lambda: not world.app.state.service.connections.snapshot())
    assert len(world.engine.ended) == len(world.engine.requests) > 50


async def test_the_unmodified_openai_client_resumes(world: World) -> None:
    client = world.client()
    stream = await client.responses.create(input="hello", stream=True)
    seen = [await anext(stream) for _ in range(5)]
    await stream.close()
    rest = await client.responses.retrieve(
        seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    whole = [*seen, *[event async for event in rest]]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert whole[-1].response.output_text == "You said: hello"


async def test_only_what_can_be_resumed_is_resumed(world: World, http: httpx.AsyncClient) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws, socket(world, "umbra") as neighbour:
        await ws.create("one")
        seven = [await ws.receive() for _ in range(7)]
        response_id = seven[0]["response"]["id"]

        stranger = await http.get(
            f"/v1/responses/{response_id}?stream=true", headers=world.headers("umbra")
        )
        unknown = await http.get("/v1/responses/resp_x?stream=true")
        assert stranger.json() == json.loads(unknown.text.replace("resp_x", response_id))
        assert stranger.status_code == 404
        assert stranger.json()["error"]["code"] == "response_not_found"
        await neighbour.send({"type": "response.resume", "response_id": response_id})
        assert (await neighbour.error())["error"] == stranger.json()["error"]

        for after in ("7", "999999999999999999999"):
            beyond = await http.get(
                f"/v1/responses/{response_id}?stream=true&starting_after={after}"
            )
            assert beyond.status_code == 400
            assert beyond.json()["error"]["param"] == "starting_after"
        async with socket(world) as other:
            resume = {"type": "response.resume", "response_id": response_id}
            await other.send(resume | {"starting_after": 7})
            assert (await other.error())["error"]["param"] == "starting_after"
            await other.send(resume | {"starting_after": 6})
            world.engine.release()
            assert (await other.turn())[0]["sequence_number"] == 7
        ws.connection.transport.abort()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=yes", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=" + "9" * 5000, "starting_after"),
        ("stream=true&starting_after=two", "starting_after"),
        ("starting_after=2", "starting_after"),
        ("colour=red", "colour"),
    ],
)
async def test_a_query_that_means_nothing_is_refused_by_name(
    world: World, http: httpx.AsyncClient, query: str, param: str
) -> None:
    response_id = (await http.post("/v1/responses", json={"input": "x"})).json()["id"]
    assert (await http.get(f"/v1/responses/{response_id}?stream=false")).status_code == 200
    answer = await http.get(f"/v1/responses/{response_id}?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "response_id"),
        ({"response_id": "resp_x", "starting_after": -1}, "starting_after"),
        ({"response_id": "resp_x", "starting_after": "2"}, "starting_after"),
        ({"response_id": "resp_x", "model": "m"}, "model"),
    ],
)
async def test_a_resume_message_that_means_nothing_is_refused_by_name(
    world: World, fields: dict[str, Any], param: str
) -> None:
    async with socket(world) as ws:
        await ws.send({"type": "response.resume", **fields})
        assert (await ws.error())["error"]["param"] == param


@pytest.mark.parametrize("limits", [Bounds(resume_grace_seconds=1.5)])
async def test_the_last_events_can_be_fetched_for_a_while(
    world: World, http: httpx.AsyncClient
) -> None:
    async with socket(world) as ws:
        await ws.create("one", store=False)
        turn = await ws.turn()
    response_id = turn[0]["response"]["id"]
    assert await rest_by_sse(http, response_id, len(turn) - 3) == turn[-2:]
    assert await rest_by_sse(http, response_id, len(turn) - 1) == []
    await asyncio.sleep(2)
    gone = await http.get(f"/v1/responses/{response_id}?stream=true")
    assert gone.json()["error"]["code"] == "response_not_found"


@pytest.mark.parametrize("limits", [Bounds(resume_grace_seconds=1.0)])
async def test_a_reader_that_comes_back_in_time_keeps_its_stream_alive(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("one")
        response_id = (await ws.receive())["response"]["id"]
    back = asyncio.create_task(rest_by_sse(http, response_id))
    await asyncio.sleep(1.5)
    assert world.engine.active
    world.engine.release()
    assert (await back)[-1]["type"] == "response.completed"


async def test_a_resumed_stream_waits_for_its_turn_in_its_lane(world: World) -> None:
    async with socket(world) as ws:
        await ws.create("one", stream_id="a")
        first = await ws.turn()
        world.engine.hold_after = 2
        await ws.create("two", stream_id="a")
        await eventually(lambda: bool(world.engine.active))
        resume = {"type": "response.resume", "response_id": first[0]["response"]["id"]}
        await ws.send(resume | {"stream_id": "a"})
        world.engine.release()
        assert (await ws.turn())[-1]["response"]["output"][0]["content"][0]["text"].endswith("two")
        assert await ws.turn() == first


async def test_a_resumed_stream_can_be_cancelled(world: World) -> None:
    world.engine.hold_after = 2
    async with socket(world) as ws:
        await ws.create("one")
        response_id = (await ws.receive())["response"]["id"]
    async with socket(world) as ws:
        await ws.send({"type": "response.resume", "response_id": response_id})
        await ws.receive()
        await ws.send({"type": "response.cancel", "response_id": response_id})
        assert (await ws.turn())[-1]["response"]["status"] == "cancelled"
    await eventually(lambda: not world.engine.active)


async def test_a_stream_that_is_ended_from_outside_says_why_to_all_its_readers(
    world: World, http: httpx.AsyncClient
) -> None:
    world.engine.hold_after = 2
    async with socket(world) as ws:
        await ws.create("one")
        response_id = (await ws.receive())["response"]["id"]
        also = asyncio.create_task(rest_by_sse(http, response_id))
        run_of(world, response_id).generation.fail(ApiError(401, "Gone.", code="invalid_api_key"))
        for last in ((await ws.turn())[-1], (await also)[-1]):
            assert last["type"] == "response.failed"
            assert last["response"]["error"] == {"code": "invalid_api_key", "message": "Gone."}
        await eventually(lambda: not world.engine.active)


async def test_a_bug_ends_a_stream_with_a_terminal_event(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(History, "save", broken)
    async with socket(world) as ws:
        await ws.create("one")
        last = (await ws.turn())[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "a bug" not in json.dumps(last)
    assert "a bug" in caplog.text


async def test_responses_of_a_tenant_without_a_cache_are_stored_only_if_asked(
    world: World, http: httpx.AsyncClient
) -> None:
    world.tenants["acme"] = await world.stores.tenants.update_tenant(
        "acme", lambda tenant: msgspec.structs.replace(tenant, cache="off")
    )
    for store, expected in ((None, False), (True, True), (False, False)):
        fields = {} if store is None else {"store": store}
        body = (await http.post("/v1/responses", json={"input": "x", **fields})).json()
        assert body["store"] is expected
        found = await http.get(f"/v1/responses/{body['id']}")
        assert found.status_code == (200 if expected else 404)


def test_an_encoded_event_tells_its_type_and_takes_a_lane() -> None:
    encoded = encode_json(TextDelta(item_id="x", delta='","stream_id":"y"'))
    assert event_type(encoded) == b"response.output_text.delta"
    assert on_lane(encoded, None) == encoded
    assert json.loads(on_lane(encoded, 'a"b')) == json.loads(encoded) | {"stream_id": 'a"b'}
