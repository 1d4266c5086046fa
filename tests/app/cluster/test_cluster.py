"""Replicas on a real Ray cluster of this machine: what they serve, and what outlives them."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from engine.api import EngineError, TokenDelta
from engine.blocks.wall import PINNED
from tests.app.cluster.running import (
    DOOR,
    PROJECT,
    Outputs,
    eventually,
    is_empty,
    processes,
    run,
    run_all,
    wanted,
)
from tests.engine.blocks.watching import Cell, decode
from tests.engine.model.test_model import save_model
from tests.engine.simulation import make_request

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model("llama", folder)
    return folder


async def test_replicas_serve_what_one_engine_does(
    engine: ClusterEngine, undisturbed: list[Outputs]
) -> None:
    assert await run_all(engine, "calm") == undisturbed
    await is_empty(engine)


async def test_a_killed_replicas_streams_go_on_at_another(
    engine: ClusterEngine, undisturbed: list[Outputs]
) -> None:
    kill = processes("ServeReplica:partywall")[0].kill
    assert await run_all(engine, "killed", kill) == undisturbed
    await eventually(lambda: engine.num_ready == 3)
    await is_empty(engine)


async def test_a_replicas_engine_that_dies_comes_back_alone(
    engine: ClusterEngine, undisturbed: list[Outputs]
) -> None:
    starts = await engine.wait_started(0)
    kill = processes("partywall-replica-")[0].kill
    assert await run_all(engine, "alone-killed", kill) == undisturbed
    await engine.wait_started(starts)
    await is_empty(engine)
    await eventually(lambda: any(one.engine_restarts for one in engine.fleet.replicas))
    assert all(one.is_up for one in engine.fleet.replicas)
    assert engine.fleet.index_blocks


@pytest.mark.parametrize("part", ["replica", "engine"])
async def test_streams_do_not_wait_for_what_stands_still(
    engine: ClusterEngine, undisturbed: list[Outputs], part: str
) -> None:
    children = processes("partywall-replica-")[:2]
    halted = children if part == "engine" else [one.parents()[0] for one in children]

    def halt() -> None:
        for one in halted:
            one.suspend()

    try:
        async with asyncio.timeout(60):
            assert await run_all(engine, f"halted-{part}", halt) == undisturbed
        await eventually(lambda: engine.num_ready == 1)
    finally:
        for one in halted:
            one.resume()
    await eventually(lambda: engine.num_ready == 3)
    await is_empty(engine)


async def test_an_update_rolls_through_under_streams(
    engine: ClusterEngine, model: Path, undisturbed: list[Outputs]
) -> None:
    from app.cluster.node.deployment import Cluster

    before = wanted(model)
    options = structs.replace(before.options, rebuild_seconds=61)
    update = Cluster(replace(before, options=options))

    async def roll() -> None:
        await asyncio.to_thread(update.deploy, update.own)

    assert await run_all(engine, "updated", roll) == undisturbed
    await eventually(lambda: engine.num_ready == 3)
    await is_empty(engine)


async def test_who_leaves_frees_its_blocks(engine: ClusterEngine) -> None:
    async with aclosing(engine.generate(make_request("left", [5, 6, 7], 500))) as deltas:
        async for delta in deltas:
            if delta.token_ids:
                break
    await is_empty(engine)


async def test_one_sequence_is_aborted_and_the_others_go_on(engine: ClusterEngine) -> None:
    request = structs.replace(make_request("some", [5, 6, 7], 400), num_sequences=2)
    ends = {}
    async for delta in engine.generate(request):
        if delta.token_ids and delta.index == 0 and not ends:
            await engine.abort("some", 0)
        if delta.finish_reason is not None:
            ends[delta.index] = delta.finish_reason
    assert ends == {0: "aborted", 1: "length"}


@pytest.mark.usefixtures("only_caches_count")
async def test_what_follows_goes_where_its_blocks_are(engine: ClusterEngine) -> None:
    prompts = [[10 + i] * 400 for i in range(6)]
    for i, prompt in enumerate(prompts):
        first = make_request(f"first{i}", prompt, 2, conversation=f"c{i}")
        await run(engine, first, [])
        hashes = await engine._hashes(first)
        await eventually(lambda told=hashes: engine._fleet.is_held(told))
    for i, prompt in enumerate(prompts):
        heard: list[TokenDelta] = []
        await run(engine, make_request(f"next{i}", [*prompt, 3, 4], 2), heard)
        assert heard[-1].cached_tokens >= 384
    found, before = set(), None
    while found == set() or before is not None:
        page = await engine.chains("a", before)
        found |= {chain.conversation for chain in page.chains}
        before = page.next
    assert found >= {f"c{i}" for i in range(6)}


async def test_the_blocks_of_each_replica_are_shown(engine: ClusterEngine) -> None:
    await run(engine, structs.replace(make_request("pin", [8] * 33, 0), pin="a/law"), [])
    for number in range(engine.num_ready):
        cells: list[Cell] = []
        frame = await engine.wall("w", number)
        while decode(frame, cells, [])[1]:
            frame = await engine.wall("w", number)
        assert sum(cell.state & PINNED > 0 for cell in cells) == 2
        assert (await engine.roll(number)).replicas == engine.num_ready
    with pytest.raises(EngineError, match="replica: there is no number 7"):
        await engine.wall("w", 7)
    await engine.unwatch("w")
    await engine.unpin("a/law")
    await is_empty(engine)


async def test_what_is_pinned_is_at_all_replicas_until_it_is_unpinned(
    engine: ClusterEngine,
) -> None:
    pinned = make_request("pin", [8] * 33, 0)
    await run(engine, structs.replace(pinned, pin="a/law"), [])
    assert (await engine.stats()).blocks_pinned == 2 * engine.num_ready
    await engine.unpin("a/law")
    await is_empty(engine)


async def test_a_second_door_joins_what_is_there(engine: ClusterEngine, model: Path) -> None:
    from app.cluster.door.client import ClusterEngine
    from app.cluster.node.deployment import Cluster

    before = {one.pid for one in processes("partywall-replica-")}
    update = wanted(model)
    update = replace(update, options=structs.replace(update.options, rebuild_seconds=61))

    class Guest(Cluster):
        """Leaves the connection with Ray, which is this process', to its host."""

        def close(self) -> None:
            pass

    second = ClusterEngine(Guest(update), ready_seconds=60)
    await second.start()
    assert await run(second, make_request("second", [5, 6, 7]), []) == await run(
        engine, make_request("first", [5, 6, 7]), []
    )
    await second.close()
    assert {one.pid for one in processes("partywall-replica-")} == before


async def test_replicas_come_and_go_by_need_under_streams(
    engine: ClusterEngine,
    model: Path,
    undisturbed: list[Outputs],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from app.cluster.node import deployment
    from app.cluster.node.deployment import Cluster

    monkeypatch.setattr(deployment, "_RISE_SECONDS", 2.0)
    hurried = replace(wanted(model), num_replicas=1, queue_seconds=1e-4)
    hurry, calm = Cluster(hurried), Cluster(wanted(model))
    await asyncio.to_thread(hurry.deploy, hurry.own)
    async with asyncio.timeout(480):
        while engine.num_ready > 1:  # nothing waits while these answers are written
            long = make_request("long", [5, 6, 7], 400)
            assert len((await run(engine, long, []))[0]) == 400
        for number in itertools.count():
            assert await run_all(engine, f"more{number}") == undisturbed
            if engine.num_ready == 3:
                break
    await is_empty(engine)
    await asyncio.to_thread(calm.deploy, calm.own)
    await eventually(lambda: engine.num_ready == 3)


async def test_doors_that_start_serve_at_the_same_time_share_it(
    engine: ClusterEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.serve._private import api
    from ray.serve.exceptions import RayServeException

    from app.cluster.node.deployment import Cluster

    looks = []

    def look(*_: object, **__: object) -> None:
        monkeypatch.undo()  # only the first time nobody is there yet
        looks.append(1)
        raise RayServeException

    monkeypatch.setattr(api, "_check_cached_client_alive", lambda: (None, False))
    monkeypatch.setattr(api, "_get_global_client", look)
    assert await asyncio.to_thread(Cluster(wanted(model)).connect) is not None
    assert looks


async def test_a_door_that_dies_leaves_no_blocks_behind(engine: ClusterEngine, model: Path) -> None:
    import ray

    from app.cluster.node.local import _TOKEN

    address = ray.get_runtime_context().gcs_address
    await is_empty(engine)
    door = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", DOOR, str(model), address),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(PROJECT), "RAY_AUTH_TOKEN": _TOKEN},
    )
    assert door.stdout is not None
    assert (await door.stdout.readline()).strip() == b"begun"
    assert (await engine.stats()).running
    door.kill()
    await door.communicate()
    await is_empty(engine)
