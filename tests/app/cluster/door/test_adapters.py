"""What a door does for adapters, as replicas tell of them and ask for them; the test plays Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from app.cluster.launch import ENVIRONMENT
from app.cluster.messages import Adapters, Brought, Wanted, decode_brought
from engine.api import AdapterUse, EngineError, LoadedAdapter, RequestRefused
from engine.serve.messages import Ready, Submit
from tests.app.cluster.door.test_fleet import INFO, Place, Told, eventually, state
from tests.engine.simulation import make_request

NAME = b"an adapter"
SERVED = structs.replace(INFO, linears={"model.q_proj": (8, 8)})


class Taking:
    """A replica's method that takes pieces, until it wants no more of them."""

    def __init__(self, most: int = 1000) -> None:
        self.taken: list[tuple[str, Brought]] = []
        self._most = most

    async def remote(self, piece: bytes, replica: str) -> bool:
        self.taken.append((replica, decode_brought(piece)))
        return len(self.taken) < self._most


async def files(name: bytes) -> AsyncIterator[bytes]:
    if name != NAME:
        raise EngineError("it was deleted")
    for piece in (b"config", b"one", b"two"):
        yield piece


@pytest.fixture
def place() -> Place:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    return Place()


async def joined(place: Place, *names: str) -> Any:
    """A door whose replicas these are."""
    from app.cluster.door.client import ClusterEngine

    engine = ClusterEngine(place, ready_seconds=10)  # type: ignore[arg-type]
    engine.source = files
    engine._fleet.attend(place.handle)
    engine._fleet.become(frozenset(names))
    await eventually(lambda: len(place.handle.replicas) == len(names))
    for told in place.handle.replicas.values():
        told.queue.put_nowait(Ready(SERVED))
    await eventually(lambda: len(engine._fleet._loads) == len(names))
    return engine


async def test_a_replica_that_wants_an_adapter_is_brought_it(place: Place) -> None:
    taking = place.handle.bring = Taking()  # type: ignore[attr-defined]
    engine = await joined(place, "one", "two")
    assert engine.info.linears == SERVED.linears
    place.handle.replicas["two"].queue.put_nowait(Wanted(NAME, 7))
    await eventually(lambda: len(taking.taken) == 4)
    assert taking.taken == [
        ("two", Brought(7, b"config")),
        ("two", Brought(7, b"one")),
        ("two", Brought(7, b"two")),
        ("two", Brought(7, is_last=True)),
    ]
    place.handle.replicas["one"].queue.put_nowait(Wanted(b"unknown", 8))
    await eventually(lambda: len(taking.taken) == 5)
    assert taking.taken[4] == ("one", Brought(8, error="it was deleted"))
    await engine.close()


async def test_no_more_is_read_than_a_replica_wants(place: Place) -> None:
    taking = place.handle.bring = Taking(most=2)  # type: ignore[attr-defined]
    engine = await joined(place, "one")
    place.handle.replicas["one"].queue.put_nowait(Wanted(NAME, 7))
    await eventually(lambda: not engine._courier._errands and taking.taken)
    assert [piece.data for _, piece in taking.taken] == [b"config", b"one", b""]
    await engine.close()


async def taker(engine: Any, place: Place, name: str) -> Told:
    """The replica that a request with the adapter goes to."""
    request = structs.replace(make_request(name, list(name.encode() * 9)), adapter=AdapterUse(NAME))
    replicas = list(place.handle.replicas.values())
    before = list(map(num_submitted, replicas))
    waiting = asyncio.ensure_future(anext(engine.generate(request)))
    await eventually(lambda: list(map(num_submitted, replicas)) != before)
    waiting.cancel()
    await eventually(lambda: not engine._runs)
    return next(
        one for one, count in zip(replicas, before, strict=True) if num_submitted(one) > count
    )


def num_submitted(replica: Told) -> int:
    return sum(isinstance(one, Submit) for one in replica.heard)


async def test_requests_go_to_the_replica_that_tells_of_their_adapter(place: Place) -> None:
    engine = await joined(place, "one", "two")
    one, two = (place.handle.replicas[name] for name in ("one", "two"))
    for turn, (holder, other) in enumerate(((one, two), (two, one), (one, two))):
        holder.queue.put_nowait(Adapters([LoadedAdapter(NAME, 0.5)]))
        other.queue.put_nowait(Adapters([], [NAME]))
        for told in (one, two):
            told.queue.put_nowait(state(0.0, books=False))
            await eventually(told.queue.empty)
        engine._fleet._router.adapters._sent.clear()  # as if that were seconds ago
        for number in range(8):
            assert await taker(engine, place, f"{turn} {number}") is holder
    await engine.close()


async def test_where_replicas_serve_no_adapters_they_are_refused(place: Place) -> None:
    engine = await joined(place, "one")
    for replica in engine._fleet.ready:
        replica.info = INFO
    request = structs.replace(make_request("r", [5] * 40), adapter=AdapterUse(NAME))
    with pytest.raises(RequestRefused, match="serves no adapters"):
        await anext(engine.generate(request))
    await engine.close()
