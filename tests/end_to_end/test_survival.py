"""What becomes of running streams when the engine is killed, and when the service is restarted."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from bench.common.service import Service
from tests.effort import scaled
from tests.end_to_end.program import STOP_SECONDS, Started, start
from tests.end_to_end.test_exactness import metric, open_socket, text_of
from tests.end_to_end.test_failures import (
    PATIENCE_SECONDS,
    engine_process,
    is_idle,
    is_ready,
    until,
)

STREAMS = scaled(16, most=32)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def creation(lane: int) -> dict[str, Any]:
    """The request of one lane: every second one is sampled, with a seed of its own."""
    sampling = {"temperature": 0} if lane % 2 else {"temperature": 0.9, "seed": lane}
    return {
        "type": "response.create",
        "stream_id": str(lane),
        "input": f"Tell me fact number {lane} about the sea.",
        "max_output_tokens": 24,
        "ignore_eos": True,
        **sampling,
    }


async def collect(
    socket: ClientConnection, lanes: list[int], delay: asyncio.Event
) -> dict[str, str]:
    """The texts of all lanes; their numbers must have no gap. Sets `delay` in the middle."""
    texts: dict[str, str] = {}
    numbers: dict[str, list[int]] = {str(lane): [] for lane in lanes}
    begun: set[str] = set()
    for lane in lanes:
        await socket.send(json.dumps(creation(lane)))
    while len(texts) < len(lanes):
        event = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_SECONDS))
        assert event["type"] != "error", event
        lane = event["stream_id"]
        numbers[lane].append(event["sequence_number"])
        if event["type"] == "response.output_text.delta":
            begun.add(lane)
        if len(begun) > len(lanes) // 2:
            delay.set()
        if event["type"] in TERMINAL:
            assert event["type"] == "response.incomplete", event
            assert event["response"]["usage"]["output_tokens"] == 24
            assert numbers[lane] == list(range(len(numbers[lane])))
            texts[lane] = text_of(event["response"])
    return texts


async def run_all(service: Service, api_key: str, *, kill: bool) -> dict[str, str]:
    """All streams over two sockets, the engine killed in their middle or not."""
    middle = asyncio.Event()
    halves = list(range(STREAMS // 2)), list(range(STREAMS // 2, STREAMS))
    async with open_socket(service, api_key) as one, open_socket(service, api_key) as other:
        running = [
            asyncio.create_task(collect(socket, lanes, middle))
            for socket, lanes in zip((one, other), halves, strict=True)
        ]
        if kill:
            await asyncio.wait_for(middle.wait(), PATIENCE_SECONDS)
            engine_process(service).kill()
        return (await running[0]) | (await running[1])


@pytest.mark.scaled
async def test_streams_outlive_their_engine_word_for_word(service: Service, api_key: str) -> None:
    undisturbed = await run_all(service, api_key, kill=False)
    before = engine_process(service).pid
    disturbed = await run_all(service, api_key, kill=True)
    assert engine_process(service).pid != before
    assert disturbed == undisturbed
    await until(lambda: is_ready(service) and is_idle(service))
    assert metric(service, "partywall_engine_invariant_violations_total") == 0


def usage_of(service: Started, admin_token: str) -> dict[str, int]:
    """What the demo tenant has been billed so far."""
    answer = httpx.get(
        f"{service.admin_url}/admin/tenants/demo/usage",
        headers={"authorization": f"Bearer {admin_token}"},
        trust_env=False,
    )
    days = answer.raise_for_status().json()["usage"]
    names = ("requests", "prompt_tokens", "output_tokens")
    return {name: sum(day[name] for day in days) for name in names}


async def follow(socket: ClientConnection, deltas: int | None = None) -> list[dict[str, Any]]:
    """Events until the stream's terminal one, or until so many have had text."""
    events: list[dict[str, Any]] = []
    while not events or (events[-1]["type"] not in TERMINAL and len(deltas_in(events)) != deltas):
        events.append(json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_SECONDS)))
        assert events[-1]["type"] != "error", events[-1]
    return events


def deltas_in(events: list[dict[str, Any]]) -> list[str]:
    return [event["delta"] for event in events if event["type"] == "response.output_text.delta"]


def text_in(events: list[dict[str, Any]]) -> str:
    return "".join(deltas_in(events))


async def test_what_was_answered_just_before_a_kill_is_billed(
    tmp_path: Path, tiny_model: Path
) -> None:
    options = "--model", str(tiny_model)
    first = start(tmp_path, *options)
    try:
        key, token = first.ready["api_key"], first.ready["admin_token"]
        body = {"input": "Count to 9.", "ignore_eos": True, "max_output_tokens": 12}
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=first.url, trust_env=False, timeout=60) as http:
            answer = await http.post("/v1/responses", json=body, headers=headers)
    finally:
        first.process.kill()
        first.process.wait()
    used = answer.raise_for_status().json()["usage"]
    billed = {"requests": 1, "prompt_tokens": used["input_tokens"], "output_tokens": 12}
    second = start(tmp_path, *options)
    try:
        await until(lambda: usage_of(second, token) == billed)
    finally:
        second.stop()


async def test_a_stream_goes_on_after_a_restart_and_is_billed_once(tmp_path: Path) -> None:
    options = ["--dtype", "float32", "--drain-seconds", "0.01"]
    creation = {"type": "response.create", "input": "Count to 90.", "temperature": 0}
    creation |= {"ignore_eos": True, "max_output_tokens": 90}
    # In two namespaces: the first answer drafts nothing for the second one, which takes its time.
    whole, interrupted = ({**creation, "safety_identifier": user} for user in ("ann", "bob"))
    first = start(tmp_path, *options)
    try:
        key, token = first.ready["api_key"], first.ready["admin_token"]
        async with open_socket(first, key) as socket:
            await socket.send(json.dumps(whole))
            undisturbed = await follow(socket)
            await socket.send(json.dumps(interrupted))
            cut = await follow(socket, deltas=3)
            first.process.send_signal(signal.SIGTERM)
            cut += await follow(socket)
        assert cut[-1]["type"] == "response.incomplete"
        assert cut[-1]["response"]["incomplete_details"] == {"reason": "service_restart"}
        assert first.process.wait(STOP_SECONDS) == 0
    finally:
        first.process.kill()
    second = start(tmp_path, *options)
    try:
        # The client missed the last three events, the interim end among them.
        seen = cut[:-3]
        async with open_socket(second, key) as socket:
            response_id = cut[-1]["response"]["id"]
            after = seen[-1]["sequence_number"]
            resume = {"type": "response.resume", "response_id": response_id}
            await socket.send(json.dumps(resume | {"starting_after": after}))
            rest = await follow(socket)
        heard = seen + rest
        numbers = [event["sequence_number"] for event in heard]
        assert numbers == sorted(set(numbers))
        assert text_in(heard) == text_in(undisturbed)
        assert text_of(rest[-1]["response"]) == text_in(heard)
        assert rest[-1]["response"]["usage"]["output_tokens"] == 90
        prompt_tokens = rest[-1]["response"]["usage"]["input_tokens"]
        billed = {"requests": 2, "prompt_tokens": 2 * prompt_tokens, "output_tokens": 180}
        await until(lambda: usage_of(second, token)["output_tokens"] >= 180)
        assert usage_of(second, token) == billed
    finally:
        second.stop()
