"""What ended streams may hold: bounded for all and for each tenant, the oldest go first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from app.responses.event_log import EventLog, EventsGone
from app.responses.run import ResumableStreams
from app.transport.bounds import Bounds
from tests.app.conftest import World, eventually
from tests.app.responses.test_responses_ws import socket


class Stream:
    def __init__(self, tenant_id: str, num_event_bytes: int, is_read: bool = False) -> None:
        self.tenant_id = tenant_id
        self.num_event_bytes = num_event_bytes
        self.is_read = is_read
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


def dropped(streams: list[Stream]) -> list[int]:
    return [number for number, stream in enumerate(streams) if stream.dropped]


def test_a_tenant_that_fills_its_share_loses_its_own_oldest_streams() -> None:
    kept = ResumableStreams(400)
    streams = [Stream("other", 100), *(Stream("acme", 40) for _ in range(5))]
    for stream in streams:
        kept.add(stream)
    assert dropped(streams) == [1, 2, 3]


def test_all_tenants_together_lose_the_oldest_first() -> None:
    kept = ResumableStreams(400)
    streams = [Stream(f"tenant-{number}", 100) for number in range(6)]
    for stream in streams:
        kept.add(stream)
    assert dropped(streams) == [0, 1]


def test_what_is_forgotten_makes_room() -> None:
    kept = ResumableStreams(400)
    streams = [Stream("acme", 60) for _ in range(3)]
    kept.add(streams[0])
    kept.remove(streams[0])
    kept.remove(streams[0])
    kept.add(streams[1])
    assert dropped(streams) == []
    kept.add(streams[2])
    assert dropped(streams) == [1]


def test_streams_that_are_read_go_last_and_the_newest_of_them_never() -> None:
    kept = ResumableStreams(400)
    streams = [
        Stream("acme", 60, is_read=True),
        Stream("acme", 40),
        Stream("acme", 500, is_read=True),
    ]
    for stream in streams[:2]:
        kept.add(stream)
    assert dropped(streams) == []
    kept.add(streams[2])
    assert dropped(streams) == [0, 1]
    kept.add(Stream("acme", 10))
    assert dropped(streams) == [0, 1, 2]


async def test_a_reader_that_is_behind_is_told_where_its_events_have_gone() -> None:
    log = EventLog(60.0, lambda: None, [b"0", b"1"])
    async with aclosing(log.follow(-1)) as behind, aclosing(log.follow(0)) as ahead:
        assert await anext(behind) == b"0"
        assert await anext(ahead) == b"1"
        log.end()
        log.drop()
        assert log.next_number == 2
        with pytest.raises(EventsGone):
            await anext(behind)
        with pytest.raises(StopAsyncIteration):
            await anext(ahead)


class TestServed:
    """Over HTTP and a socket; every stream alone fills the tenant's share."""

    @pytest.fixture
    def limits(self) -> Bounds:
        return Bounds(max_kept_event_bytes=4 * 5000)

    async def test_a_reader_that_comes_too_late_gets_the_error_it_gets_after_the_grace(
        self, world: World
    ) -> None:
        responses = []
        async with socket(world) as ws:
            for _ in range(3):
                await ws.create("hello")
                turn = await ws.turn()
                assert turn[-1]["type"] == "response.completed"
                responses.append(turn[0]["response"]["id"])
            await eventually(lambda: len(world.app.state.service.responses._runs) <= 1)
            await ws.send({"type": "response.resume", "response_id": responses[0]})
            error = await ws.receive()
        assert (error["status"], error["error"]["code"]) == (404, "response_not_found")
        async with httpx.AsyncClient(
            base_url=world.base_url, headers=world.headers(), trust_env=False
        ) as http:
            late = await http.get(f"/v1/responses/{responses[0]}?stream=true")
            assert (late.status_code, late.json()["error"]["code"]) == (404, "response_not_found")
            stored = await http.get(f"/v1/responses/{responses[0]}")
            assert (stored.status_code, stored.json()["status"]) == (200, "completed")

    async def test_a_reader_that_is_slow_gets_the_error_in_its_stream(self, world: World) -> None:
        world.engine.hold_after = 3
        reading = asyncio.Event()
        sent: list[bytes] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            if body := message.get("body"):
                sent.append(body)
                await reading.wait()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async with socket(world) as ws:
            await ws.create("hello")
            response_id = (await ws.receive())["response"]["id"]
            headers = [(name.encode(), value.encode()) for name, value in world.headers().items()]
            scope = {
                "type": "http",
                "method": "GET",
                "path": f"/v1/responses/{response_id}",
                "query_string": b"stream=true",
                "headers": headers,
            }
            slow = asyncio.create_task(world.app(scope, receive, send))
            await eventually(lambda: bool(sent))
            world.engine.release()
            await ws.turn()
            await ws.create("another, for which the first has to go")
            await ws.turn()
            reading.set()
            await slow
        assert sent[0].startswith(b"event: response.created")
        assert sent[-2].startswith(b"event: error")
        error = json.loads(sent[-2].split(b"data: ")[1])
        assert (error["type"], error["code"]) == ("error", "response_not_found")
        assert sent[-1] == b"data: [DONE]\n\n"
