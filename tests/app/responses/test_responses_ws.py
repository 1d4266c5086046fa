"""The Responses API over a raw WebSocket: lanes, cancelling, errors, readers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.transport.bounds import Bounds
from tenants.keys import api_keys
from tests.app.conftest import World, eventually

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


@contextlib.asynccontextmanager
async def socket(world: World, tenant: str = "acme", **options: Any) -> AsyncIterator[Raw]:
    options.setdefault("additional_headers", world.headers(tenant))
    async with connect(world.ws_url, max_size=None, compression=None, **options) as connection:
        yield Raw(connection)


class Raw:
    """JSON over a socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def create(self, text: object = "hello", **fields: object) -> None:
        await self.send({"type": "response.create", "input": text, **fields})

    async def send(self, message: object) -> None:
        await self.connection.send(json.dumps(message))

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            return json.loads(await self.connection.recv())

    async def turn(self) -> list[dict[str, Any]]:
        """The events up to a terminal one."""
        events = [await self.receive()]
        while events[-1]["type"] not in TERMINAL:
            events.append(await self.receive())
        return events

    async def error(self) -> dict[str, Any]:
        event = await self.receive()
        assert event["type"] == "error"
        return event


def text_of(events: list[dict[str, Any]]) -> str:
    return events[-1]["response"]["output"][0]["content"][0]["text"]


async def test_responses_of_one_lane_run_one_after_the_other(world: World) -> None:
    async with socket(world) as ws:
        for word in ("one", "two", "three"):
            await ws.create(word, stream_id="a")
        turns = [await ws.turn() for _ in range(3)]
    assert [text_of(turn) for turn in turns] == [
        "You said: one",
        "You said: two",
        "You said: three",
    ]
    assert all(event["stream_id"] == "a" for turn in turns for event in turn)
    assert all([e["sequence_number"] for e in turn] == list(range(len(turn))) for turn in turns)
    assert world.engine.most_active == 1


async def test_lanes_run_side_by_side(world: World) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("one", stream_id="a")
        await ws.create("two", stream_id="b")
        await ws.create("three")
        await eventually(lambda: len(world.engine.active) == 3)
        world.engine.release()
        finished = {}
        while len(finished) < 3:
            event = await ws.receive()
            if event["type"] == "response.completed":
                finished[event.get("stream_id")] = text_of([event])
    assert finished == {"a": "You said: one", "b": "You said: two", None: "You said: three"}


async def test_cancel_ends_one_stream_and_the_lane_goes_on(world: World) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("one", stream_id="a")
        await ws.create("two", stream_id="b")
        await eventually(lambda: len(world.engine.active) == 2)
        seen = ""
        while seen != "You":
            event = await ws.receive()
            seen += event.get("delta", "") if event["stream_id"] == "a" else ""
        await ws.send({"type": "response.cancel", "stream_id": "a"})
        event = await ws.receive()
        while event["type"] not in TERMINAL:
            event = await ws.receive()
        assert (event["type"], event["stream_id"]) == ("response.incomplete", "a")
        assert event["response"]["status"] == "cancelled"
        assert text_of([event]) == "You"
        assert len(world.engine.active) == 1
        world.engine.release()
        assert (await ws.turn())[-1]["type"] == "response.completed"
        await ws.create("three", stream_id="a", previous_response_id=event["response"]["id"])
        assert text_of(await ws.turn()) == "You said: three"


async def test_cancel_by_response_id_and_of_the_nameless_lane(world: World) -> None:
    world.engine.hold_after = 0
    async with socket(world) as ws:
        await ws.create("one")
        created = await ws.receive()
        await ws.send({"type": "response.cancel", "response_id": created["response"]["id"]})
        assert (await ws.turn())[-1]["response"]["status"] == "cancelled"
        await ws.create("two")
        await eventually(lambda: len(world.engine.active) == 1)
        await ws.send({"type": "response.cancel"})
        assert (await ws.turn())[-1]["response"]["status"] == "cancelled"
        await ws.send({"type": "response.cancel"})
        assert (await ws.error())["error"]["code"] == "response_not_found"


@pytest.mark.parametrize("limits", [Bounds(resume_grace_seconds=0.2)])
async def test_a_vanished_reader_frees_its_requests_after_the_grace(world: World) -> None:
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("one", stream_id="a")
        await ws.create("two", stream_id="b")
        await eventually(lambda: len(world.engine.active) == 2)
        await asyncio.sleep(0.5)
        assert len(world.engine.active) == 2, "as long as somebody reads, they go on"
        ws.connection.transport.abort()
        await eventually(lambda: not world.engine.active)
    assert len(world.engine.ended) == 2


@pytest.mark.parametrize("limits", [Bounds(send_deadline_seconds=0.3)])
async def test_a_stalled_reader_loses_its_socket_and_nobody_elses(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.answer = "x" * 1500
    options = {"max_queue": 1, "ping_interval": None}
    long_input = "y" * 300
    async with socket(world, **options) as stalled, socket(world) as other:
        stalled.connection.transport.pause_reading()
        for lane in range(6):
            fields = {"stream_id": str(lane), "metadata": {"k": "v" * 500}}
            await stalled.create(long_input, top_logprobs=20, include=LOGPROBS, **fields)
        world.engine.answer = None
        await other.create("hello")
        assert text_of(await other.turn()) == "You said: hello"
        await eventually(lambda: "stalled" in caplog.text and not world.engine.active)
        stalled.connection.transport.abort()


LOGPROBS = ["message.output_text.logprobs"]


async def test_errors_that_are_read_are_never_too_many(world: World) -> None:
    async with socket(world) as ws:
        frames = [ws.send({"type": "nonsense"}) for _ in range(300)]
        await asyncio.gather(*frames)
        for _ in range(300):
            assert (await ws.error())["error"]["code"] == "unknown_message_type"
        await ws.create()
        assert text_of(await ws.turn()) == "You said: hello"


async def test_a_client_that_causes_errors_and_does_not_read_them_is_closed(world: World) -> None:
    sent = 0

    async def flood(ws: Raw) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionClosed):
            while True:
                await ws.send({"type": "x" * 1000})
                sent += 1

    async def stands_still() -> None:
        before, num_still = -1, 0
        while num_still < 3:
            num_still = num_still + 1 if before == sent else 0
            before = sent
            await asyncio.sleep(0.3)

    async with socket(world, ping_interval=None) as ws, asyncio.timeout(60):
        flooding = asyncio.create_task(flood(ws))
        with contextlib.suppress(ConnectionClosed):
            while True:  # again where it stood still since the machine was busy, and not for good
                ws.connection.transport.pause_reading()
                await stands_still()
                ws.connection.transport.resume_reading()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(3):
                        while True:
                            await ws.connection.recv()
        await flooding
        assert ws.connection.close_code == 1008


@pytest.mark.parametrize("limits", [Bounds(inbox_messages=4)])
async def test_a_full_inbox_is_an_error_and_a_cancel_still_gets_through(world: World) -> None:
    world.engine.hold_after = 0
    async with socket(world) as ws:
        for _ in range(5):
            await ws.create()
        event = await ws.receive()
        while event["type"] != "error":
            event = await ws.receive()
        assert (event["status"], event["error"]["code"]) == (429, "inbox_full")
        await ws.send({"type": "response.cancel"})
        while event["type"] != "response.incomplete":
            event = await ws.receive()
        assert event["response"]["status"] == "cancelled"


@pytest.mark.parametrize("limits", [Bounds(max_lanes_per_socket=2)])
async def test_too_many_lanes_are_refused(world: World) -> None:
    world.engine.hold_after = 0
    async with socket(world) as ws:
        for lane in ("a", "b", "c"):
            await ws.create(stream_id=lane)
        event = await ws.receive()
        while event["type"] != "error":
            event = await ws.receive()
        assert event["error"]["code"] == "websocket_stream_limit_reached"
        assert event["stream_id"] == "c"


@pytest.mark.parametrize("limits", [Bounds(max_active_responses_per_socket=2)])
async def test_active_responses_are_bounded_and_the_rest_wait(world: World) -> None:
    async with socket(world) as ws:
        for lane in range(6):
            await ws.create(stream_id=str(lane))
        finished = 0
        while finished < 6:
            finished += (await ws.receive())["type"] == "response.completed"
    assert world.engine.most_active == 2


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_type", None),
        (b"{}", "invalid_type", None),
        ('{"type": "response.steer"}', "unknown_message_type", "type"),
        ('{"type": "response.create"}', "missing_required_parameter", "input"),
        ('{"type": "response.create", "input": "x", "colour": 1}', "unknown_parameter", "colour"),
        (
            '{"type": "response.create", "input": "x", "stream_id": ""}',
            "invalid_stream_id",
            "stream_id",
        ),
        (
            '{"type": "response.create", "input": "x", "stream": false}',
            "unsupported_value",
            "stream",
        ),
        ('{"type": "response.cancel", "why": 1}', "unknown_parameter", "why"),
        ('{"type": "response.create", "input": "x", "model": "gpt-9"}', "model_not_found", "model"),
    ],
)
async def test_bad_messages_get_an_error_and_the_socket_stays(
    world: World, message: str | bytes, code: str, param: str | None
) -> None:
    async with socket(world) as ws:
        await ws.connection.send(message)
        event = await ws.error()
        assert event["error"]["code"] == code
        assert event["error"]["param"] == param
        assert event["status"] in (400, 404)
        await ws.create()
        assert text_of(await ws.turn()) == "You said: hello"


@pytest.mark.parametrize("limits", [Bounds(max_message_bytes=100)])
async def test_a_message_that_is_too_large_is_an_error(world: World) -> None:
    async with socket(world) as ws:
        await ws.create("é" * 60)
        assert (await ws.error())["error"]["code"] == "message_too_large"


@pytest.mark.parametrize("limits", [Bounds(max_socket_seconds=1.0)])
async def test_an_old_socket_ends_its_responses_before_it_closes(world: World) -> None:
    world.engine.hold_after = 2
    async with socket(world) as ws:
        await ws.create("one")
        await ws.create("two")
        assert (await ws.turn())[-1]["response"]["status"] == "cancelled"
        for _ in range(2):  # once for the response that never began, once for the socket
            assert (await ws.error())["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            await ws.receive()


@pytest.mark.parametrize("limits", [Bounds(max_socket_seconds=0.1)])
async def test_an_old_socket_is_told_so_and_closed(world: World) -> None:
    async with socket(world) as ws:
        assert (await ws.error())["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            await ws.receive()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


@pytest.mark.parametrize("prefix", ["partywall.key.", "openai-insecure-api-key."])
async def test_a_browser_sends_its_key_as_a_subprotocol(world: World, prefix: str) -> None:
    protocols = ["realtime", prefix + world.keys["acme"]]
    async with socket(world, additional_headers={}, subprotocols=protocols) as ws:
        assert ws.connection.subprotocol == "realtime"
        await ws.create()
        assert text_of(await ws.turn()) == "You said: hello"


async def test_a_browser_may_offer_its_key_alone(world: World) -> None:
    protocol = "partywall.key." + world.keys["acme"]
    async with socket(world, additional_headers={}, subprotocols=[protocol]) as ws:
        assert ws.connection.subprotocol == protocol, "it closes where nothing is selected"
        await ws.create()
        assert text_of(await ws.turn()) == "You said: hello"


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"authorization": "Basic x"}]
)
async def test_an_upgrade_without_a_valid_key_is_refused(
    world: World, headers: dict[str, str]
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(world, additional_headers=headers):
            pass
    assert refused.value.response.status_code == 401
    assert b"invalid_api_key" in refused.value.response.body


async def test_an_upgrade_during_a_store_outage_is_refused_with_503(world: World) -> None:
    stranger = {"authorization": f"Bearer {api_keys.generate()}"}
    with world.outage(), pytest.raises(InvalidStatus) as refused:
        async with socket(world, additional_headers=stranger):
            pass
    assert refused.value.response.status_code == 503


async def test_a_known_tenant_chats_through_a_store_outage(world: World) -> None:
    async with socket(world) as ws:
        await ws.create("one")
        first = (await ws.turn())[-1]["response"]
        with world.outage():
            await ws.create("two", previous_response_id=first["id"])
            assert text_of(await ws.turn()) == "You said: two"


async def test_unstored_state_lives_with_its_socket(world: World) -> None:
    async with socket(world) as ws:
        await ws.create("one", store=False)
        first = (await ws.turn())[-1]["response"]
        assert first["store"] is False
        await ws.create("two", store=False, previous_response_id=first["id"])
        assert text_of(await ws.turn()) == "You said: two"
    async with socket(world) as ws:
        await ws.create("three", store=False, previous_response_id=first["id"])
        assert (await ws.error())["error"]["code"] == "previous_response_not_found"
        await ws.create("fresh", store=False)
        assert text_of(await ws.turn()) == "You said: fresh"


async def test_a_failed_continuation_evicts_its_parent(world: World) -> None:
    async with socket(world) as ws:
        await ws.create("one", store=False)
        first = (await ws.turn())[-1]["response"]["id"]
        missing = {"type": "function_call_output", "call_id": "call_x", "output": "?"}
        await ws.create([missing], store=False, previous_response_id=first)
        assert (await ws.error())["error"]["param"] == "input"
        await ws.create("again", store=False, previous_response_id=first)
        assert (await ws.error())["error"]["code"] == "previous_response_not_found"


async def test_a_stored_response_outlives_its_socket(world: World) -> None:
    async with socket(world) as ws:
        await ws.create("one")
        first = (await ws.turn())[-1]["response"]["id"]
    async with socket(world) as ws:
        await ws.create("two", previous_response_id=first)
        assert text_of(await ws.turn()) == "You said: two"
