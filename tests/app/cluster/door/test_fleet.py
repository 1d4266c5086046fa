"""Whom a front door sends requests, as replicas say what they are; the test plays Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from msgspec import structs

from app.cluster.launch import ENVIRONMENT
from app.cluster.messages import Hello, State, ToDoor
from engine.api import EngineInfo, EngineRequest, EngineUnavailable, TenantStats, TokenDelta
from engine.questions import ServedElsewhere
from engine.serve.messages import (
    Deltas,
    Ready,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
)
from tests.engine.simulation import make_request, simulated_core

INFO = EngineInfo(
    model="m",
    device="cpu",
    dtype="float32",
    block_size=16,
    num_blocks=64,
    max_context_tokens=512,
    max_running_sequences=8,
    vocab_size=64,
    eos_token_ids=(1,),
    hash_extras=b"weights",
)


class Told:
    """The messages of one replica, until it is cancelled or dies."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[ToDoor | Exception] = asyncio.Queue()
        self.heard: list[ToEngine] = []

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        said = await self.queue.get()
        if isinstance(said, Exception):
            raise said
        return encode(said)

    def cancel(self) -> None:
        pass


class Handle:
    """What Ray Serve gives: calls are for the replica that is named."""

    def __init__(self) -> None:
        self.replicas: dict[str, Told] = {}
        self.attend = self.tell = self

    def options(self, **_: object) -> Handle:
        return self

    def remote(self, door: str, *messages: list[bytes], replica: str) -> Any:
        told = self.replicas.setdefault(replica, Told())
        if not messages:
            return told
        told.heard += map(decode_to_engine, messages[0])
        return asyncio.sleep(0)


class Place:
    """A cluster that is there already."""

    head: str | None = None

    def __init__(self) -> None:
        self.handle = Handle()

    def connect(self) -> Handle:
        return self.handle

    def close(self) -> None:
        pass


async def eventually(is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_replica_of_another_model_gets_no_requests() -> None:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.door.client import ClusterEngine

    place = Place()
    engine = ClusterEngine(place, ready_seconds=10)  # type: ignore[arg-type]
    fleet = engine._fleet
    fleet.attend(place.handle)
    fleet.become(frozenset({"own", "other"}))
    await eventually(lambda: len(place.handle.replicas) == 2)
    own, other = place.handle.replicas["own"], place.handle.replicas["other"]
    own.queue.put_nowait(Ready(INFO))
    await eventually(lambda: engine.num_ready == 1)
    other.queue.put_nowait(Ready(structs.replace(INFO, hash_extras=b"other weights")))
    await eventually(other.queue.empty)
    async with aclosing(engine.generate(make_request("r", [5] * 40))) as deltas:  # type: ignore[type-var]
        waiting = asyncio.ensure_future(anext(deltas))
        await eventually(lambda: own.heard)
        (submitted,) = own.heard
        assert isinstance(submitted, Submit)
        name = submitted.request.request_id
        own.queue.put_nowait(Deltas([TokenDelta(request_id=name, token_ids=[7])]))
        assert (await waiting).token_ids == [7]
        fleet.become(frozenset({"other"}))  # its stream waits for one of its kind
        assert engine.num_ready == 0
        with pytest.raises(EngineUnavailable):
            await anext(engine.generate(make_request("s", [5] * 40)))
        fleet.become(frozenset({"other", "new"}))
        await eventually(lambda: "new" in place.handle.replicas)
        new = place.handle.replicas["new"]
        new.queue.put_nowait(Ready(INFO))
        await eventually(lambda: new.heard)
        (resumed,) = new.heard
        assert isinstance(resumed, Submit)
        assert resumed.request.generated == [[7]]
    assert not other.heard
    await engine.close()


def state(served: float, *, books: bool) -> State:
    tenant = TenantStats(
        running=1,
        waiting=0,
        blocks_held=0,
        blocks_shared=0,
        blocks_cached=0,
        blocks_pinned=0,
        served=served,
    )
    stats = simulated_core().stats()
    return State(structs.replace(stats, tenants={"a": tenant}), books)


async def test_replicas_are_told_of_each_others_service_by_the_door_that_books() -> None:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.door.client import ClusterEngine

    place = Place()
    engine = ClusterEngine(place, ready_seconds=10)  # type: ignore[arg-type]
    engine._fleet.attend(place.handle)
    engine._fleet.become(frozenset({"one", "two"}))
    await eventually(lambda: len(place.handle.replicas) == 2)
    one, two = place.handle.replicas["one"], place.handle.replicas["two"]
    said = [(one, 0.0, True), (two, 0.0, False), (one, 40.0, True), (two, 3.0, False)]
    for replica, served, books in [*said, (one, 40.0, True)]:
        replica.queue.put_nowait(state(served, books=books))
        await eventually(replica.queue.empty)
    await eventually(lambda: one.heard)
    assert one.heard == [ServedElsewhere({"a": 3.0})]
    await engine.close()
    assert not two.heard


async def test_a_new_replica_computes_its_prompts_before_it_takes_requests() -> None:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.door.client import ClusterEngine

    place = Place()
    engine = ClusterEngine(place, ready_seconds=10)  # type: ignore[arg-type]
    engine._fleet.attend(place.handle)
    engine._fleet.become(frozenset({"old"}))
    await eventually(lambda: len(place.handle.replicas) == 1)
    old = place.handle.replicas["old"]
    old.queue.put_nowait(Ready(INFO))
    await eventually(lambda: engine.num_ready == 1)

    def end(replica: Told) -> None:
        """Answer the last request with its end."""
        name = replica.heard[-1].request.request_id  # type: ignore[union-attr]
        delta = TokenDelta(request_id=name, finish_reason="length")
        replica.queue.put_nowait(Deltas([delta]))

    async def run(request: EngineRequest, at: Told) -> None:
        before = len(at.heard)
        running = asyncio.ensure_future(anext(engine.generate(request)))
        await eventually(lambda: len(at.heard) > before)
        end(at)
        assert (await running).finish_reason == "length"

    pinned = make_request("pinned", [7] * 32, shared_tokens=32, pin="p")
    nothing = structs.replace(pinned.sampling, max_tokens=0)
    await run(structs.replace(pinned, sampling=nothing), old)
    engine._fleet.become(frozenset({"old", "new"}))
    await eventually(lambda: "new" in place.handle.replicas)
    new = place.handle.replicas["new"]
    new.queue.put_nowait(Ready(INFO))
    await eventually(lambda: new.heard)
    (warming,) = new.heard
    assert isinstance(warming, Submit)
    assert (warming.request.prompt, warming.request.pin) == ([7] * 32, "p")
    for number in range(6):
        await run(make_request(f"early {number}", [number] * 40), old)
    end(new)
    await eventually(lambda: len(engine._fleet._loads) == 2)
    old.queue.put_nowait(state_with_queue(60.0))
    await eventually(old.queue.empty)
    await run(make_request("late", [9] * 40), new)
    assert len(new.heard) == 2
    await engine.close()


def state_with_queue(seconds: float) -> State:
    return State(structs.replace(simulated_core().stats(), queue_seconds=seconds), books=False)


async def test_a_replica_of_another_version_gets_no_requests_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.door.client import ClusterEngine
    from app.cluster.rollout import own_release

    place = Place()
    engine = ClusterEngine(place, ready_seconds=10)  # type: ignore[arg-type]
    engine._fleet.attend(place.handle)
    engine._fleet.become(frozenset({"own", "other"}))
    await eventually(lambda: len(place.handle.replicas) == 2)
    own, other = place.handle.replicas["own"], place.handle.replicas["other"]
    for said in (Hello("9.9.9+aa"), Ready(INFO)):
        other.queue.put_nowait(said)
    await eventually(lambda: "9.9.9+aa" in caplog.text)
    assert own_release() in caplog.text
    for said in (Hello(own_release()), Ready(INFO)):
        own.queue.put_nowait(said)
    await eventually(lambda: engine.num_ready == 1)
    engine._fleet.become(frozenset({"own"}))
    assert engine.num_ready == 1
    await engine.close()
