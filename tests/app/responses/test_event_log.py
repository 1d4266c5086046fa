"""The log of a stream: followed from anywhere, by anybody, and abandoned when nobody does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from app.responses.event_log import EventLog

LONG = 60.0


async def read(log: EventLog, after: int = -1) -> list[bytes]:
    async with aclosing(log.follow(after)) as events:
        return [event async for event in events]


async def test_every_reader_gets_every_event_after_its_own_number() -> None:
    log = EventLog(LONG, lambda: None)
    early = asyncio.create_task(read(log))
    log.append(b"0")
    await asyncio.sleep(0)
    middle = asyncio.create_task(read(log, 0))
    await asyncio.sleep(0)
    log.append(b"1")
    log.append(b"2")
    log.end()
    assert [await early, await middle] == [[b"0", b"1", b"2"], [b"1", b"2"]]
    assert await read(log, 1) == [b"2"]
    assert await read(log, 2) == []


class Taker:
    """Takes what is offered while it is `free`; otherwise once it is let go on."""

    def __init__(self) -> None:
        self.free = True
        self.offered: list[bytes] = []
        self.sent: list[bytes] = []
        self.room = asyncio.Event()

    def offer(self, event: bytes) -> bool:
        if self.free:
            self.offered.append(event)
        return self.free

    async def send(self, event: bytes) -> None:
        await self.room.wait()
        self.sent.append(event)


async def test_a_reader_that_keeps_up_has_an_event_before_append_returns() -> None:
    log, taker = EventLog(LONG, lambda: None, [b"0", None]), Taker()
    log.append(b"2")
    feeding = asyncio.create_task(log.feed(-1, taker))
    await asyncio.sleep(0)
    assert taker.offered == [b"0", b"2"]
    log.append(b"3")
    assert taker.offered == [b"0", b"2", b"3"]
    log.end()
    await feeding


async def test_a_reader_that_is_behind_gets_every_event_in_order_once_it_can() -> None:
    log, taker, other = EventLog(LONG, lambda: None), Taker(), Taker()
    feeding = [asyncio.create_task(log.feed(-1, one)) for one in (taker, other)]
    await asyncio.sleep(0)
    log.append(b"0")
    taker.free = False
    log.append(b"1")
    log.append(b"2")
    for _ in range(3):
        await asyncio.sleep(0)
    assert (taker.offered, taker.sent) == ([b"0"], [])
    taker.room.set()
    taker.free = True
    log.append(b"3")
    log.end()
    await asyncio.gather(*feeding)
    assert taker.sent == [b"1"]
    assert taker.offered == [b"0", b"2", b"3"]
    assert other.offered == [b"0", b"1", b"2", b"3"]


async def test_a_reader_that_leaves_is_offered_nothing_more() -> None:
    log, taker = EventLog(LONG, lambda: None), Taker()
    feeding = asyncio.create_task(log.feed(-1, taker))
    await asyncio.sleep(0)
    feeding.cancel()
    await asyncio.wait({feeding})
    log.append(b"0")
    assert taker.offered == []


async def test_what_is_not_for_replay_keeps_its_number() -> None:
    log = EventLog(LONG, lambda: None, [b"0", None])
    assert log.next_number == 2
    log.append(b"2")
    log.end()
    assert await read(log) == [b"0", b"2"]
    assert await read(log, 1) == [b"2"]


async def test_a_long_replay_lets_others_run() -> None:
    log = EventLog(LONG, lambda: None, [b"x"] * 1000)
    log.end()
    ran: list[int] = []
    taken = 0
    asyncio.get_running_loop().call_soon(lambda: ran.append(taken))
    async with aclosing(log.follow(-1)) as events:
        async for _ in events:
            taken += 1
    assert taken == 1000
    assert ran[0] < 1000


async def test_it_is_abandoned_once_nobody_has_followed_for_the_grace() -> None:
    abandoned = asyncio.Semaphore(0)
    log = EventLog(0.05, abandoned.release)
    first, second = (asyncio.create_task(read(log)) for _ in range(2))
    await asyncio.sleep(0.2)
    assert abandoned.locked()
    first.cancel()
    await asyncio.sleep(0.2)
    assert abandoned.locked(), "one reader is enough"
    second.cancel()
    async with asyncio.timeout(10):
        await abandoned.acquire()
        await abandoned.acquire()
    log.close()
    await asyncio.sleep(0.2)
    assert abandoned.locked(), "it is closed"


async def test_it_is_abandoned_as_well_where_nobody_ever_came() -> None:
    abandoned = asyncio.Event()
    log = EventLog(0.01, abandoned.set)
    async with asyncio.timeout(10):
        await abandoned.wait()
    log.close()
