"""What is asked of a cluster, and how its processes are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from msgspec import structs

from app.cluster.launch import ENVIRONMENT
from engine.api import EngineRequest, TokenDelta
from engine.config import EngineConfig
from tests.engine.simulation import make_request

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine
    from app.cluster.node.deployment import Deployment

PROJECT = Path(__file__).parents[3]
CONFIG = {"device": "cpu", "dtype": "float32", "kv_memory_bytes": 8 << 20, "threads": 1}


def wanted(folder: Path, address: str | None = None) -> Deployment:
    """Three replicas of a model."""
    from app.cluster.node.deployment import Deployment
    from app.cluster.node.replica import ReplicaOptions

    options = ReplicaOptions(
        engine=EngineConfig(model_path=str(folder), **CONFIG),  # type: ignore[arg-type]
        rebuild_seconds=60,
        silence_seconds=120,
        loading_seconds=300,
    )
    return Deployment(
        options=options,
        num_replicas=3,
        most_replicas=3,
        queue_seconds=1,
        idle_seconds=1,
        cpus=0.5,
        gpus=0,
        address=address,
        environment=ENVIRONMENT | {"PYTHONPATH": str(PROJECT)},
        drain_seconds=5,
    )


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


Outputs = dict[int, list[int]]


async def run(engine: Any, request: EngineRequest, heard: list[TokenDelta]) -> Outputs:
    """All tokens by sequence; each delta is `heard`, too."""
    outputs: Outputs = {index: [] for index in range(request.num_outputs)}
    ended: list[int] = []
    async with aclosing(engine.generate(request)) as deltas:
        async for delta in deltas:
            assert delta.error is None, delta.error
            assert delta.index not in ended
            outputs[delta.index] += delta.token_ids
            if delta.finish_reason is not None:
                ended.append(delta.index)
            heard.append(delta)
    assert sorted(ended) == sorted(outputs)
    return outputs


def requests(label: str) -> list[EngineRequest]:
    """Greedy ones, and seeded ones of several sequences."""
    greedy = [make_request(f"{label}-g{i}", [5, 6, 7, 8, 9 + i], 100) for i in range(48)]
    sampled = []
    for i in range(16):
        one = make_request(f"{label}-s{i}", [5, 6, 7, 8, 9 + i], 60)
        sampling = structs.replace(one.sampling, temperature=1.0, seed=i + 1)
        sampled.append(structs.replace(one, num_sequences=3, sampling=sampling))
    return greedy + sampled


async def run_all(
    engine: Any, label: str, disturb: Callable[[], Any] | None = None
) -> list[Outputs]:
    """What comes of all of them, disturbed in their middle."""
    heard: list[TokenDelta] = []
    tasks = [asyncio.create_task(run(engine, one, heard)) for one in requests(label)]
    if disturb is not None:
        await eventually(lambda: len(heard) > 800)
        assert not all(task.done() for task in tasks)
        result = disturb()
        if asyncio.iscoroutine(result):
            await result
    return await asyncio.gather(*tasks)


def processes(part: str) -> list[psutil.Process]:
    """Below this one, by a part of their command lines."""
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if one.status() != psutil.STATUS_ZOMBIE and part in " ".join(one.cmdline())
    ]


async def is_empty(engine: ClusterEngine) -> None:
    """All blocks have come back, and the replicas' books are in order."""
    async with asyncio.timeout(60):
        while True:
            stats = await engine.stats()
            if not (stats.running or stats.waiting or stats.blocks_in_use):
                assert stats.invariant_violations == 0
                return
            await asyncio.sleep(0.05)


DOOR = """
import asyncio, sys
from pathlib import Path

from app.cluster.door.client import ClusterEngine
from app.cluster.node.deployment import Cluster
from tests.app.cluster.running import wanted
from tests.engine.simulation import (make_request)


async def main() -> None:
    engine = ClusterEngine(Cluster(wanted(Path(sys.argv[1]), sys.argv[2])), ready_seconds=60)
    await engine.start()
    await asyncio.gather(*(one(engine, number) for number in range(256)))


async def one(engine: ClusterEngine, number: int) -> None:
    async for delta in engine.generate(make_request(f"door{number}", [5, 6, number], 500)):
        print("begun", flush=True)


asyncio.run(main())
"""
