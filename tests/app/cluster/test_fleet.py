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
from app.cluster.messages import State, ToDoor
from engine.api import EngineInfo, EngineUnavailable, TenantStats, TokenDelta
from engine.serve.messages import (
    Deltas,
    Ready,
    ServedElsewhere,
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

    version = "v"

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
    from app.cluster.client import ClusterEngine

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
    from app.cluster.client import ClusterEngine

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
