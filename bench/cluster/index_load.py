"""What an index takes at a front door: memory, time for events, and choices of the router."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Final

import msgspec
import psutil

from app.cluster.routing.index import PrefixIndex
from app.cluster.routing.router import ReplicaLoad, Router
from engine.blocks.listeners import Change
from engine.serve.kv_events import KVEventBatch, events_of

BLOCK_SIZE: Final = 16
_CHAIN: Final = 64
"""Blocks that are told of at once, and those of a prompt."""
_MOST_HOLDERS: Final = 16
_KEPT: Final = 64 * 1024
"""Blocks that are looked up, and removed."""
_IN_FLIGHT: Final = 256
_DECISIONS: Final = 400


@dataclass(frozen=True, slots=True)
class IndexLoad:
    """What was measured."""

    bytes_per_block: float
    stored_us: float
    """Of processor time, a block."""
    removed_us: float
    longest_ms: float
    """That one chain's blocks took: of the clock, beside whatever else runs."""
    chain_us: float
    """That a look-up of a prompt took."""
    snapshot_us: float
    """To decode and store a block of those that a replica has told of again."""


def measure_index(num_blocks: int, num_replicas: int, seed: int) -> IndexLoad:
    """Of an index of so many blocks, in a process that has nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure_index, num_blocks, num_replicas, seed).result()


def measure_decisions(num_replicas: int, seed: int) -> float:
    """Decisions a second of processor time: choice, and its beginning and end in the books."""
    draw = random.Random(f"decisions {seed}")
    index = PrefixIndex()
    chains = list(_chains(draw, num_replicas, 64 * 1024))
    for holders, hashes in chains:
        for replica in holders:
            index.stored(replica, hashes)
    loads = {replica: _load(draw, 0.0) for replica in range(num_replicas)}
    router = Router(index, BLOCK_SIZE, seed)
    prompts = [draw.choice(chains)[1] for _ in range(_IN_FLIGHT + _DECISIONS)]
    now = 0.0
    spent: list[float] = []
    for number, hashes in enumerate(prompts):
        now += 0.001
        loads[number % num_replicas] = _load(draw, now)
        began = time.process_time()
        choice = router.choose(hashes, _CHAIN * BLOCK_SIZE + 1, loads, now)
        router.routed(str(number), choice, hashes, now)
        router.finished(str(number - _IN_FLIGHT))
        spent.append(time.process_time() - began)
    return 1 / statistics.fmean(spent[_IN_FLIGHT:])


def _load(draw: random.Random, now: float) -> ReplicaLoad:
    return ReplicaLoad(draw.expovariate(2.0), draw.uniform(0.0, 1.0), 2e4, now)


def _measure_index(num_blocks: int, num_replicas: int, seed: int) -> IndexLoad:
    draw = random.Random(f"index {seed}")
    index, memory = PrefixIndex(), psutil.Process()
    before = memory.memory_info().rss
    stored, longest, told = 0.0, 0.0, 0
    for holders, hashes in _chains(draw, num_replicas, num_blocks):
        for replica in holders:
            began, at = time.process_time(), time.perf_counter()
            index.stored(replica, hashes)
            stored += time.process_time() - began
            longest = max(longest, time.perf_counter() - at)
            told += len(hashes)
    per_block = (memory.memory_info().rss - before) / len(index)
    kept = list(_chains(draw, num_replicas, _KEPT))
    for holders, hashes in kept:
        index.stored(holders[0], hashes)
    began = time.process_time()
    for _, hashes in kept:
        index.depths(hashes)
    chain = (time.process_time() - began) / len(kept)
    began = time.process_time()
    for holders, hashes in kept:
        index.removed(holders[0], hashes)
    removed = (time.process_time() - began) / sum(len(hashes) for _, hashes in kept)
    snapshot = _snapshot_seconds(index, draw, num_replicas)
    return IndexLoad(
        per_block, 1e6 * stored / told, 1e6 * removed, 1e3 * longest, 1e6 * chain, 1e6 * snapshot
    )


def _snapshot_seconds(index: PrefixIndex, draw: random.Random, replica: int) -> float:
    """Of processor time, a block, to take what a replica tells of all that it has."""
    changes = [
        Change(one, True, hashes[number - 1] if number else None)
        for _, hashes in _chains(draw, 1, 100_000)
        for number, one in enumerate(hashes)
    ]
    payload = msgspec.msgpack.encode(KVEventBatch(0.0, events_of(changes, BLOCK_SIZE)))
    began = time.process_time()
    for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
        index.stored(replica, event.block_hashes)  # type: ignore[union-attr]
    return (time.process_time() - began) / len(changes)


def _chains(
    draw: random.Random, num_replicas: int, num_blocks: int
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Chains of blocks, and who holds them: one replica, or of every eighth several."""
    num_made = 0
    while num_made < num_blocks:
        num_holders = draw.randint(2, _MOST_HOLDERS) if draw.random() < 1 / 8 else 1
        holders = draw.sample(range(num_replicas), min(num_holders, num_replicas))
        yield holders, [draw.randbytes(16) for _ in range(_CHAIN)]
        num_made += _CHAIN
