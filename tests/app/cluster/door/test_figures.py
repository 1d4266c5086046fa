"""What operators see of each replica and of where requests went; the test plays Ray."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from app.cluster.door.fleet import Heard
from app.cluster.launch import ENVIRONMENT
from app.cluster.messages import Blocks, State, ToDoor
from app.observe.fleet_metrics import FleetMetrics
from engine.api import TokenDelta
from engine.blocks.hashing import Extras, block_hashes
from engine.client import ReplicaFigures
from engine.serve.messages import Deltas, Down, Ready
from tests.app.cluster.door.test_fleet import INFO, Told, eventually
from tests.app.cluster.node.test_events import Replica as Publishing
from tests.app.cluster.test_down import Doored, door, given, says
from tests.engine.simulation import make_request, simulated_core

__all__ = ["door"]

STATS = structs.replace(
    simulated_core(num_blocks=64).stats(),
    running=3,
    waiting=2,
    queue_seconds=1.5,
    blocks_in_use=16,
    prompt_tokens=100,
    cached_tokens=80,
)
SERIES = "partywall_replica_"


async def say(replica: Told, message: ToDoor) -> None:
    """Have it heard."""
    replica.queue.put_nowait(message)
    await eventually(replica.queue.empty)


def seen(door: Doored) -> dict[str, ReplicaFigures]:
    return {one.name: one for one in door.engine.fleet.replicas}


def exported(door: Doored) -> dict[tuple[str, str], float]:
    """Values by metric and label; without one, an empty one."""
    metrics = FleetMetrics()
    metrics.observe(door.engine.fleet)
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


async def test_each_replica_has_series_of_its_own_that_end_with_it(door: Doored) -> None:
    one, two = await door.join("one", "two")
    await say(one, State(STATS, books=True))
    await say(two, State(structs.replace(STATS, queue_seconds=60.0), books=False))
    await eventually(lambda: seen(door)["two"].stats is not None)
    found = exported(door)
    assert found[f"{SERIES}up", "one"] == found[f"{SERIES}up", "two"] == 1
    assert found[f"{SERIES}num_requests_running", "one"] == 3
    assert found[f"{SERIES}num_requests_waiting", "one"] == 2
    assert found[f"{SERIES}queue_seconds", "one"] == 1.5
    assert found[f"{SERIES}queue_seconds", "two"] == 60
    assert found[f"{SERIES}kv_cache_usage_perc", "one"] == 0.25
    hits, queries = (
        found[f"{SERIES}prefix_cache_{name}_total", "one"] for name in ("hits", "queries")
    )
    assert (hits, queries) == (80, 100)
    await door.join("one")
    assert {label for name, label in exported(door) if name.startswith(SERIES)} == {"one"}


async def test_an_engine_that_is_lost_is_down_and_its_successor_a_restart(door: Doored) -> None:
    one, _ = await door.join("one", "two")
    await say(one, State(structs.replace(STATS, engine="first"), books=True))
    await say(one, Down([], alone=False))
    await eventually(lambda: not seen(door)["one"].is_up)
    found = exported(door)
    assert found[f"{SERIES}up", "one"] == 0
    assert (f"{SERIES}queue_seconds", "one") not in found  # nobody knows
    assert found[f"{SERIES}engine_restarts_total", "one"] == 0
    await say(one, Ready(INFO))
    await say(one, State(structs.replace(STATS, engine="second"), books=True))
    await say(one, State(structs.replace(STATS, engine="second"), books=True))
    await eventually(lambda: seen(door)["one"].engine_restarts == 1)
    assert exported(door)[f"{SERIES}up", "one"] == 1
    assert exported(door)[f"{SERIES}engine_restarts_total", "two"] == 0


def routed(door: Doored) -> Mapping[str, int]:
    return {by: count for by, count in door.engine.fleet.routed.items() if count}


async def end(door: Doored, replica: Told, name: str, number: int) -> None:
    """A request is sent there, and answered with its end."""
    door.ask(name)
    asked = await given(replica, number)
    await say(replica, Deltas([TokenDelta(request_id=asked, finish_reason="length")]))
    await eventually(lambda: door.heard[name])


async def test_requests_are_counted_by_what_chose_their_replica(door: Doored) -> None:
    one, two = await door.join("one", "two")
    assert set(door.engine.fleet.routed) == {"residency", "load", "random"}
    await say(one, State(structs.replace(STATS, queue_seconds=9.0), books=True))
    await say(two, State(structs.replace(STATS, queue_seconds=0.0), books=False))
    await end(door, two, "new", 0)
    assert routed(door) == {"load": 1}
    request = make_request("r", [5] * 40)
    hashes = block_hashes(
        request.prompt, INFO.block_size, request.namespaces, Extras(INFO.hash_extras)
    )
    await say(two, Blocks(stored=list(hashes)))
    await eventually(lambda: door.engine.fleet.index_blocks == 2)
    await end(door, two, "same", 1)
    assert routed(door) == {"load": 1, "residency": 1}
    for load in door.engine._fleet._loads.values():
        object.__setattr__(load, "said_at", -60.0)  # long ago
    door.ask("blind")
    await eventually(lambda: routed(door) == {"load": 1, "residency": 1, "random": 1})
    found = exported(door)
    assert found["partywall_requests_routed_total", "residency"] == 1
    assert found["partywall_index_blocks", ""] == 2


async def test_streams_that_move_are_counted_and_say_how_long_they_waited(door: Doored) -> None:
    (one,) = await door.join("one")
    door.ask("r")
    name = await given(one)
    says(one, name, 7)
    await eventually(lambda: door.heard["r"])
    _, two = await door.join("one", "two")
    assert exported(door)["partywall_streams_moved_total", ""] == 0
    before = time.monotonic()
    await say(one, Down([name], alone=True))
    says(two, await given(two), 8)
    await eventually(lambda: len(door.heard["r"]) == 2)
    assert 0 < door.heard["r"][1].rebuilt_seconds <= time.monotonic() - before
    assert exported(door)["partywall_streams_moved_total", ""] == 1


async def test_a_replica_says_when_its_engine_told_of_blocks_and_what_was_lost(
    tmp_path: Path,
) -> None:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.node.replica import _Door

    publishing = Publishing(tmp_path)
    publishing.live(5)
    endpoints = publishing.config.kv_events, publishing.config.kv_events_replay
    pulse = SimpleNamespace(stats=None)
    own = _Door(None, pulse, endpoints, lambda: True)  # type: ignore[arg-type]
    told: list[Blocks] = []

    async def hears() -> None:
        told[:] = [one for one in await own.take() if isinstance(one, Blocks)]

    async with asyncio.timeout(10):
        while not told:
            await hears()
        assert abs(time.time() - told[-1].at) < 10
        while told[-1:] == [] or not told[-1].lost:
            await publishing.lose(2)
            publishing.live(1)
            await hears()
    await own.close()
    publishing.publisher.close()


def test_news_of_blocks_tell_how_late_they_came_and_what_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = Heard()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    heard.blocks(Blocks(at=now - 3, lost=2))
    figures = heard.figures("one", is_up=True)
    assert (figures.index_lag_seconds, figures.events_lost) == (3, 2)
    heard.blocks(Blocks(at=now + 1, lost=1))  # its clock is ahead, and it is attended to anew
    figures = heard.figures("one", is_up=True)
    assert (figures.index_lag_seconds, figures.events_lost) == (0, 3)
    heard.blocks(Blocks(at=now - 8, lost=1))
    now += 60  # with nothing to tell
    assert heard.figures("one", is_up=True).index_lag_seconds == 0
