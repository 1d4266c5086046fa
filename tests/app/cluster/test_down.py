"""Engines that are lost under their replicas: what the door does, and when a replica tells it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from msgspec import structs

from app.cluster.launch import ENVIRONMENT
from app.cluster.messages import Beat
from app.cluster.node.replica import Pulse
from engine.api import EngineInfo, EngineStats, EngineUnavailable, TokenDelta
from engine.serve.entrance import Entrance
from engine.serve.messages import Abort, Deltas, Down, Ready, Submit
from engine.serve.running_stream import RunningStream
from tests.app.cluster.door.test_fleet import INFO, Place, Told, eventually
from tests.engine.simulation import make_request, simulated_core

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine

REBUILD_SECONDS = 0.3


class Doored:
    """A door and its replicas, and the deltas of its requests."""

    def __init__(self, place: Place, engine: ClusterEngine) -> None:
        self.place = place
        self.engine = engine
        self.heard: dict[str, list[TokenDelta]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, *names: str) -> list[Told]:
        """These replicas are the ones there are, and are ready."""
        handle = self.place.handle
        new = [name for name in names if name not in handle.replicas]
        self.engine._fleet.become(frozenset(names))
        await eventually(lambda: handle.replicas.keys() >= set(names))
        for name in new:
            handle.replicas[name].queue.put_nowait(Ready(INFO))
        await eventually(lambda: self.engine.num_ready == len(names))
        await eventually(lambda: len(self.engine._fleet._loads) == len(names))
        return [handle.replicas[name] for name in names]

    def ask(self, name: str) -> None:
        """Have it generated."""

        async def run() -> None:
            self.heard[name] = []
            async for delta in self.engine.generate(make_request(name, [5] * 40)):
                self.heard[name].append(delta)

        self._tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        """Leave, with what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.close()


@pytest_asyncio.fixture
async def door() -> AsyncIterator[Doored]:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.door.client import ClusterEngine

    place = Place()
    engine = ClusterEngine(place, ready_seconds=10, rebuild_seconds=REBUILD_SECONDS)  # type: ignore[arg-type]
    engine._fleet.attend(place.handle)
    doored = Doored(place, engine)
    yield doored
    await doored.close()


async def given(replica: Told, number: int = 0) -> str:
    """What the replica calls the request that it was sent at that place."""
    submitted: list[Submit] = []

    def has_it() -> bool:
        submitted[:] = [one for one in replica.heard if isinstance(one, Submit)]
        return len(submitted) > number

    await eventually(has_it)
    return submitted[number].request.request_id


def says(replica: Told, name: str, token: int) -> None:
    replica.queue.put_nowait(Deltas([TokenDelta(request_id=name, token_ids=[token])]))


async def test_a_dead_engines_streams_move_at_once_to_a_replica_that_is_ready(
    door: Doored,
) -> None:
    (one,) = await door.join("one")
    door.ask("r")
    name = await given(one)
    says(one, name, 7)
    await eventually(lambda: door.heard["r"])
    _, two = await door.join("one", "two")
    one.queue.put_nowait(Down([name], alone=True))
    says(one, name, 8)  # its replica had not heard yet
    moved = await given(two)
    submitted = two.heard[0]
    assert isinstance(submitted, Submit)
    assert submitted.request.generated == [[7]]
    assert submitted.request.deaths == 1
    await eventually(lambda: Abort(name) in one.heard)
    assert door.engine.num_ready == 1
    await asyncio.sleep(2 * REBUILD_SECONDS)  # a rebuild that takes long costs no stream
    says(two, moved, 9)
    await eventually(lambda: len(door.heard["r"]) == 2)
    assert [delta.token_ids for delta in door.heard["r"]] == [[7], [9]]
    one.queue.put_nowait(Ready(INFO))
    await eventually(lambda: door.engine.num_ready == 2)


async def test_a_dead_engines_streams_wait_for_the_next_one_where_there_is_no_other(
    door: Doored,
) -> None:
    (one,) = await door.join("one")
    door.ask("r")
    one.queue.put_nowait(Down([await given(one)], alone=True))
    await eventually(lambda: not door.engine.num_ready)
    one.queue.put_nowait(Ready(INFO))
    says(one, await given(one, 1), 7)
    await eventually(lambda: door.heard["r"])


async def test_a_stream_that_no_replica_goes_on_with_ends_and_says_so(door: Doored) -> None:
    (one,) = await door.join("one")
    door.ask("r")
    says(one, await given(one), 7)
    await eventually(lambda: door.heard["r"])
    one.queue.put_nowait(Down([], alone=False))
    begun = time.monotonic()
    await eventually(lambda: len(door.heard["r"]) == 2)
    assert time.monotonic() - begun >= REBUILD_SECONDS - 0.1
    end = door.heard["r"][1]
    assert (end.finish_reason, end.error) == ("error", "no replica is there to compute it")


async def test_what_the_engine_had_not_been_given_is_not_to_blame(door: Doored) -> None:
    (one,) = await door.join("one")
    door.ask("r")
    await given(one)
    _, two = await door.join("one", "two")
    one.queue.put_nowait(Down([], alone=False))
    await given(two)
    submitted = two.heard[0]
    assert isinstance(submitted, Submit)
    assert submitted.request.deaths == 0


async def test_who_has_ended_two_engines_waits_for_a_new_one_and_spares_the_third(
    door: Doored,
) -> None:
    (one,) = await door.join("one")
    door.ask("r")
    name = await given(one)
    two = (await door.join("one", "two"))[1]
    one.queue.put_nowait(Down([name], alone=False))
    moved = await given(two)
    door.engine._fleet.become(frozenset({"one", "two", "three"}))
    await eventually(lambda: "three" in door.place.handle.replicas)
    three = door.place.handle.replicas["three"]
    three.queue.put_nowait(Ready(INFO))
    await eventually(lambda: door.engine.num_ready == 2)
    two.queue.put_nowait(Down([moved], alone=False))
    await eventually(lambda: door.engine.num_ready == 1)
    one.queue.put_nowait(Ready(INFO))
    again = await given(one, 1)
    one.queue.put_nowait(Down([again], alone=True))
    await eventually(lambda: door.heard["r"])
    assert door.heard["r"][-1].finish_reason == "error"
    assert "died 3 times" in str(door.heard["r"][-1].error)
    assert not three.heard


async def test_a_replica_that_says_nothing_for_six_beats_is_lost(
    door: Doored, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.cluster.door import link

    monkeypatch.setattr(link, "BEAT_SECONDS", 0.05)
    (one,) = await door.join("one")
    one.queue.put_nowait(Beat())
    await eventually(one.queue.empty)
    start = time.monotonic()
    await eventually(lambda: not door.engine.num_ready)
    assert 0.2 < time.monotonic() - start < 5


@pytest.mark.parametrize("is_death", [True, False])
async def test_a_replica_s_death_may_be_its_requests_doing_and_its_silence_is_not(
    door: Doored, monkeypatch: pytest.MonkeyPatch, *, is_death: bool
) -> None:
    from ray.exceptions import RayError

    from app.cluster.door import link

    (one,) = await door.join("one")
    door.ask("r")
    await given(one)
    _, two = await door.join("one", "two")
    monkeypatch.setattr(link, "BEAT_SECONDS", 0.05)
    if is_death:
        one.queue.put_nowait(RayError("it is dead"))
    else:
        one.queue.put_nowait(Beat())  # the last one
    while not two.heard:
        two.queue.put_nowait(Beat())
        await asyncio.sleep(0.01)
    submitted = two.heard[0]
    assert isinstance(submitted, Submit)
    assert submitted.request.deaths == is_death


async def test_a_door_that_stood_still_itself_takes_no_replica_for_dead(
    door: Doored, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.cluster.door import link

    monkeypatch.setattr(link, "BEAT_SECONDS", 0.05)
    (one,) = await door.join("one")
    for _ in range(3):
        time.sleep(0.5)  # noqa: ASYNC251
        one.queue.put_nowait(Beat())
        await asyncio.sleep(0.01)
        assert door.engine.num_ready == 1


class Engine:
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.info: EngineInfo = INFO
        self.is_halted = False
        self.on_down: Callable[[Down], None] = lambda _: None
        self.answers = asyncio.Event()
        self.is_dead = False
        self.answers.set()

    def requests_inside(self) -> Down:
        return Down(["r"], alone=True)

    async def stats(self) -> EngineStats:
        if self.is_dead:
            raise EngineUnavailable("dead")
        await self.answers.wait()
        return simulated_core().stats()


@pytest_asyncio.fixture
async def watched(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Engine, Pulse, list[Down | Ready]]]:
    monkeypatch.setattr("app.cluster.node.replica.BEAT_SECONDS", 0.01)
    engine, told = Engine(), list[Down | Ready]()
    pulse = Pulse(engine, told.append)
    running = asyncio.create_task(pulse.run())
    await eventually(lambda: pulse.stats)
    yield engine, pulse, told
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


Watched = tuple[Engine, Pulse, list[Down | Ready]]


async def test_a_dead_engine_is_told_of_at_once_and_the_next_one_too(watched: Watched) -> None:
    engine, pulse, told = watched
    engine.is_dead = True
    engine.on_down(Down(["r"], alone=True))
    assert told == [Down(["r"], alone=True)]
    assert pulse.stats is None
    await asyncio.sleep(0.05)
    assert len(told) == 1
    engine.is_dead = False
    await eventually(lambda: told[1:] == [Ready(INFO)])


async def test_a_long_step_is_no_death(watched: Watched) -> None:
    engine, pulse, told = watched
    engine.answers.clear()
    await asyncio.sleep(0.2)
    assert pulse.is_up
    assert not told


async def test_a_halted_engine_is_lost_without_blame_until_it_goes_on(watched: Watched) -> None:
    engine, _, told = watched
    engine.answers.clear()
    engine.is_halted = True
    await eventually(lambda: told == [Down([], alone=False)])
    engine.is_halted = False
    engine.answers.set()
    await eventually(lambda: told[1:] == [Ready(INFO)])


async def test_a_request_tells_the_next_engine_of_its_deaths() -> None:
    entrance = Entrance()
    requests = [structs.replace(make_request(name, [5]), deaths=1) for name in ("a", "b")]
    streams = list(map(RunningStream, requests))
    for stream in streams:
        entrance.queue(stream)
    assert list(entrance.let_in(0.0)) == streams[:1]
