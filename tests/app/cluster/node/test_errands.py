"""Adapters on their way from doors to a replica's engine, whoever leaves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from app.cluster.door.courier import Courier
from app.cluster.messages import Brought, Wanted
from app.cluster.node import errands as errands_module
from app.cluster.node.errands import Errands
from engine.api import EngineError, EngineUnavailable

NAME = b"name"
PIECES = [b"config", *(bytes([number]) * 9 for number in range(20))]


class Door:
    """One that has an adapter in these pieces, and then fails, or goes on no further."""

    def __init__(
        self, replica: Replica, pieces: Iterable[bytes] = (), then: Exception | None = None
    ) -> None:
        self.courier = Courier(lambda: self._source)
        self.wants = True
        self.handed_out: list[bytes] = []
        self.goes_on = asyncio.Event()
        self._replica = replica
        self._pieces = list(pieces)
        self._then = then

    def needs(self, adapter: bytes) -> bool:
        return self.wants and adapter == NAME

    def put(self, message: Wanted) -> None:
        self.courier.send(self._replica, message)

    async def _source(self, name: bytes) -> AsyncIterator[bytes]:
        assert name == NAME
        for piece in self._pieces:
            self.handed_out.append(piece)
            yield piece
        if isinstance(self._then, asyncio.CancelledError):
            await asyncio.Event().wait()
        if self._then is not None:
            raise self._then


STANDS_STILL = asyncio.CancelledError


class Replica:
    """Doors and their errands."""

    def __init__(self) -> None:
        self.doors: dict[str, Door] = {}
        self.errands = Errands(self.doors)
        self.is_lost = False

    def joined(self, name: str, pieces: Iterable[bytes], then: type | None = None) -> Door:
        door = self.doors[name] = Door(self, pieces, None if then is None else then("no store"))
        return door

    async def bring(self, piece: Brought) -> bool:
        if self.is_lost:
            raise EngineUnavailable("it is lost")
        return await self.errands.bring(piece)

    def left(self, name: str) -> None:
        self.errands.lose(self.doors.pop(name))

    async def fetched(self) -> list[bytes]:
        return [piece async for piece in self.errands.fetch(NAME)]


@pytest.fixture
def replica() -> Replica:
    return Replica()


async def test_a_door_whose_request_waits_brings_all_pieces_in_order(replica: Replica) -> None:
    idle, busy = replica.joined("idle", PIECES), replica.joined("busy", PIECES)
    idle.wants = False
    assert await replica.fetched() == PIECES
    assert not idle.handed_out
    assert busy.handed_out == PIECES
    assert not len(replica.errands)


async def test_the_store_is_read_no_further_than_one_piece_ahead(replica: Replica) -> None:
    door = replica.joined("door", PIECES)
    pieces = replica.errands.fetch(NAME)
    for count in range(1, 6):
        await anext(pieces)
        await asyncio.sleep(0.01)
        assert len(door.handed_out) <= count + 1


async def test_what_nobody_wants_any_more_is_read_no_further(replica: Replica) -> None:
    door = replica.joined("door", PIECES)
    pieces = replica.errands.fetch(NAME)
    assert await anext(pieces) == PIECES[0]
    await pieces.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        await asyncio.gather(*door.courier._errands)
    assert len(door.handed_out) <= 3
    assert not len(replica.errands)


async def test_an_adapter_of_a_door_that_leaves_is_brought_by_another_from_its_beginning(
    replica: Replica,
) -> None:
    replica.joined("first", PIECES[:5], STANDS_STILL)
    pieces = replica.errands.fetch(NAME)
    assert [await anext(pieces) for _ in range(5)] == PIECES[:5]
    replica.joined("second", PIECES)
    replica.left("first")
    with pytest.raises(EngineUnavailable):
        await anext(pieces)
    assert await replica.fetched() == PIECES
    assert not len(replica.errands)


async def test_what_nobody_is_left_to_bring_is_lacked_at_once(replica: Replica) -> None:
    replica.joined("door", PIECES[:5], STANDS_STILL)
    coming = asyncio.create_task(replica.fetched())
    await asyncio.sleep(0.01)
    replica.left("door")
    with pytest.raises(EngineUnavailable):
        await coming
    with pytest.raises(EngineError, match="nobody is there to bring it") as lacked:
        await replica.fetched()
    assert not isinstance(lacked.value, EngineUnavailable)


async def test_a_door_without_its_store_is_followed_by_one_that_has_it(replica: Replica) -> None:
    replica.joined("without", [], EngineError)
    replica.joined("broken", [], ValueError)
    replica.joined("with", PIECES)
    assert await replica.fetched() == PIECES


async def test_what_all_doors_fail_to_bring_is_lacked_for_what_the_last_one_said(
    replica: Replica,
) -> None:
    replica.joined("broken", [], ValueError)
    replica.joined("without", [], EngineError)
    with pytest.raises(EngineError, match="no store"):
        await replica.fetched()


async def test_an_adapter_is_not_put_together_from_two_doors_pieces(replica: Replica) -> None:
    replica.joined("first", PIECES[:5], EngineError)
    replica.joined("second", PIECES)
    with pytest.raises(EngineError, match="no store"):
        await replica.fetched()


async def test_a_door_that_stands_still_is_not_waited_for_for_ever(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands_module, "_PATIENCE_SECONDS", 0.05)
    replica.joined("door", PIECES[:5], STANDS_STILL)
    with pytest.raises(EngineError, match="it does not come"):
        await replica.fetched()
    assert not len(replica.errands)


async def test_a_lost_replica_is_brought_nothing_more(replica: Replica) -> None:
    door = replica.joined("door", PIECES)
    pieces = replica.errands.fetch(NAME)
    await anext(pieces)
    replica.is_lost = True
    async with asyncio.timeout(5):
        await asyncio.gather(*door.courier._errands)
    assert len(door.handed_out) <= 3


async def test_a_door_that_closes_waits_for_no_replica(replica: Replica) -> None:
    door = replica.joined("door", PIECES)
    await anext(replica.errands.fetch(NAME))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await door.courier.close()
    assert not door.courier._errands
