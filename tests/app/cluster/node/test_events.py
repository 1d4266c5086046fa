"""Following the events of replicas: what is lost, who starts anew, who goes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec import structs

from app.cluster.messages import Blocks
from app.cluster.node.events import Follower
from app.cluster.routing.index import PrefixIndex
from engine.blocks.changes import Changes
from engine.blocks.pool import BlockPool
from engine.config import EngineConfig
from engine.serve.core import EngineCore
from engine.serve.kv_events import KVEventPublisher
from engine.serve.local import LocalEngine
from tests.engine.simulation import make_request, simulated_core


class Replica:
    """A pool whose blocks come and go at random, and who publishes them."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.config = EngineConfig(
            model_path="",
            kv_events=f"ipc://{folder}/events",
            kv_events_replay=f"ipc://{folder}/replay",
            kv_events_topic="kv",
        )
        changes = Changes()
        self.pool = BlockPool(64, listener=changes)
        self.rng = random.Random(seed)
        self.publisher = KVEventPublisher(self.config, changes, 16)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            blocks = self.pool.allocate(self.rng.randrange(1, 5), "tenant")
            for block in blocks:
                self.pool.register(block, self.rng.randbytes(16))
            self.pool.release(blocks)
            self.pool.check()
            self.publisher.publish()

    async def lose(self, steps: int) -> None:
        """Live, and have nothing of it come through."""
        pub, self.publisher._pub = self.publisher._pub, None
        self.live(steps)
        await until(self.publisher._queue.empty)
        await asyncio.sleep(0.01)
        self.publisher._pub = pub

    @property
    def hashes(self) -> set[bytes]:
        found = map(self.pool.hash_of, range(self.pool.num_blocks))
        return {one for one in found if one is not None}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def knows(index: PrefixIndex, replica: Replica, number: int = 0) -> Callable[[], bool]:
    """Whether the index has what the pool has, and nothing besides."""

    def condition() -> bool:
        is_there = all(index.depths([one]).get(number) == 1 for one in replica.hashes)
        return is_there and count(index, number) == len(replica.hashes)

    return condition


def count(index: PrefixIndex, number: int) -> int:
    life, table = index._lives.get(number, -1), index._table
    entries = (entry for bucket in range(table.num_buckets) for entry in table.items_in(bucket))
    return sum(life in index._sets[holders] for _, holders in entries)


@contextlib.asynccontextmanager
async def following(
    index: PrefixIndex, config: EngineConfig, number: int = 0, ask_seconds: float = 60.0
) -> AsyncIterator[Follower]:
    assert config.kv_events is not None
    assert config.kv_events_replay is not None

    def tell(blocks: Blocks) -> None:
        if blocks.cleared:
            index.cleared(number)
        index.stored(number, blocks.stored)
        index.removed(number, blocks.removed)

    follower = Follower(
        tell, config.kv_events, config.kv_events_replay, ask_seconds, patience_seconds=1.0
    )
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("before", [0, 40, 800])
async def test_a_late_reader_learns_all_and_what_follows(tmp_path: Path, before: int) -> None:
    replica, index = Replica(tmp_path), PrefixIndex()
    replica.live(before)
    async with following(index, replica.config, ask_seconds=0.1):
        await until(knows(index, replica))
        replica.live(30)
        await until(knows(index, replica))
    assert count(index, 0) == 0
    replica.publisher.close()


@pytest.mark.parametrize("lost", [5, 700])
async def test_a_gap_is_healed(tmp_path: Path, lost: int) -> None:
    replica, index = Replica(tmp_path), PrefixIndex()
    async with following(index, replica.config, ask_seconds=0.1) as follower:
        replica.live(20)
        await until(knows(index, replica))
        await replica.lose(lost)
        replica.live(1)
        await until(knows(index, replica))
        await replica.lose(lost)  # and nothing comes behind it
        # What is sent whole is taken in turns with others: all is known before its number is.
        await until(lambda: follower._last == replica.publisher._last)
        await until(knows(index, replica))
    replica.publisher.close()


async def test_a_gap_is_seen_by_its_number(tmp_path: Path) -> None:
    replica, index = Replica(tmp_path), PrefixIndex()
    async with following(index, replica.config) as follower:
        await until(lambda: follower._last == replica.publisher._last)
        for _ in range(1000):  # until the subscription has come through, all is lost
            await replica.lose(2)
            replica.live(1)
            await asyncio.sleep(0.02)
            if follower.num_gaps:
                break
        assert follower.num_gaps
        await until(knows(index, replica))
    replica.publisher.close()


async def test_a_new_engine_has_nothing_of_the_former_ones(tmp_path: Path) -> None:
    first, index = Replica(tmp_path), PrefixIndex()
    first.live(30)
    async with following(index, first.config, ask_seconds=0.05):
        await until(knows(index, first))
        first.publisher.close()
        second = Replica(tmp_path, seed=1)
        await until(knows(index, second))
        assert count(index, 0) == 0
        second.live(30)
        await until(knows(index, second))
    second.publisher.close()


async def test_nothing_is_known_of_who_does_not_answer(tmp_path: Path) -> None:
    replica, index = Replica(tmp_path), PrefixIndex()
    replica.live(10)
    async with following(index, replica.config, ask_seconds=0.05):
        await until(knows(index, replica))
        replica.publisher.close()
        await until(lambda: count(index, 0) == 0)


async def test_replicas_are_kept_apart(tmp_path: Path) -> None:
    index = PrefixIndex()
    for name in "ab":
        (tmp_path / name).mkdir()
    one, other = Replica(tmp_path / "a", 1), Replica(tmp_path / "b", 2)
    async with (
        following(index, one.config, 1, ask_seconds=0.1),
        following(index, other.config, 2, ask_seconds=0.1),
    ):
        one.live(60)
        other.live(60)
        await until(knows(index, one, 1))
        await until(knows(index, other, 2))
    one.publisher.close()
    other.publisher.close()


async def test_an_engine_tells_what_it_holds_and_forgets(tmp_path: Path) -> None:
    index, cores = PrefixIndex(), list[EngineCore]()

    def build() -> EngineCore:
        core = simulated_core(num_blocks=64)
        core.config = structs.replace(
            core.config, kv_events=f"ipc://{tmp_path}/e", kv_events_replay=f"ipc://{tmp_path}/r"
        )
        core.scheduler.tiers.changes = Changes()
        cores.append(core)
        return core

    engine = LocalEngine(build)
    await engine.start()
    async with following(index, cores[0].config, ask_seconds=0.1):
        for number in range(3):
            prompt = [5 + number] * 70
            async for _ in engine.generate(make_request(f"r{number}", prompt, tenant="a")):
                pass
        pool = cores[0].scheduler.pool
        held = {one for one in map(pool.hash_of, range(64)) if one is not None}
        assert len(held) >= 3 * (70 // cores[0].info.block_size)
        await until(lambda: all(index.depths([one]) == {0: 1} for one in held))
        await engine.forget_tenant("a")  # while there is nothing to compute
        await until(lambda: not any(index.depths([one]) for one in held))
    await engine.close()
