"""What a front door takes: its index, what replicas tell it of blocks, and of tenants.

Memory, processor time and bytes, measured at the pace of simulated replicas.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec
import psutil

from app.cluster.door.fairness import Turns
from app.cluster.door.ledger import LeaseLedger
from app.cluster.messages import State, decode_to_door, state_since
from app.cluster.node.replica import BEAT_SECONDS
from app.cluster.routing.index import PrefixIndex
from app.cluster.routing.router import ReplicaLoad, Router
from bench.cluster.replica import Pace
from bench.cluster.routing import Case, Setting, simulate
from bench.cluster.workloads import load_workload
from engine.api import EngineStats, TenantStats
from engine.blocks.changes import Change
from engine.serve.kv_events import KVEventBatch, events_of

BLOCK_SIZE: Final = 16
_CHAIN: Final = 64
"""Blocks that are told of at once, and those of a prompt."""
_MOST_HOLDERS: Final = 16
_KEPT: Final = 64 * 1024
"""Blocks that are looked up, and removed."""
_IN_FLIGHT: Final = 256
_DECISIONS: Final = 400

LOAD_PERCENT: Final = 90
_WORKLOAD: Final = "tenants"
_FRAMES_BYTES: Final = 2 * 9 + 8
"""Beside a message's payload: the heads of its frames, and the number."""
_REPLICAS: Final = 4
_BEATS: Final = 25
_FIRST_BEATS: Final = 5
"""That are not counted: of the first all is told anyway, and all are looked at for some more."""
_TURNOVER: Final = 1 / 8
"""Of tenants that have requests, those of whom that is no longer so at the next beat."""
_IDLE: Final = TenantStats(
    running=0, waiting=0, blocks_held=0, blocks_shared=0, blocks_cached=0, blocks_pinned=0, served=0
)


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
    loads = {replica: _drawn_load(draw, 0.0) for replica in range(num_replicas)}
    router = Router(index, BLOCK_SIZE, seed)
    prompts = [draw.choice(chains)[1] for _ in range(_IN_FLIGHT + _DECISIONS)]
    now = 0.0
    spent: list[float] = []
    for number, hashes in enumerate(prompts):
        now += 0.001
        loads[number % num_replicas] = _drawn_load(draw, now)
        began = time.process_time()
        choice = router.choose(hashes, _CHAIN * BLOCK_SIZE + 1, loads, now)
        router.routed(str(number), choice, hashes, now)
        router.finished(str(number - _IN_FLIGHT))
        spent.append(time.process_time() - began)
    return 1 / statistics.fmean(spent[_IN_FLIGHT:])


def _drawn_load(draw: random.Random, now: float) -> ReplicaLoad:
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


@dataclass(frozen=True, slots=True)
class EventLoad:
    """Of one replica."""

    kib_per_s: float
    blocks_per_s: float
    """Stored and removed."""
    requests_per_s: float


def measure_events(requests: int, block_size: int, seed: int) -> EventLoad:
    """Of a replica with an index and a router before it, whose memory is full of blocks.

    Every block that comes then evicts another.
    """
    pace = Pace()
    setting = Setting(Path("nowhere"), seed, _REPLICAS, requests, doors=2)
    found = simulate(Case(_WORKLOAD, LOAD_PERCENT, "ours", setting))
    counted = load_workload(_WORKLOAD, setting.traces, seed, requests).counted
    prompts = (1 - found.hit_ratio) * sum(one.prompt_tokens for one in counted)
    outputs = sum(one.output_tokens for one in counted)
    seconds = pace.work_seconds(round(prompts), outputs) / (LOAD_PERCENT / 100)
    blocks_per_s = (prompts + outputs) / block_size / seconds
    requests_per_s = len(counted) / seconds
    in_chain = round(blocks_per_s / requests_per_s)
    kib_per_block = _message_bytes(in_chain, block_size) / (2 * in_chain) / 1024
    return EventLoad(2 * blocks_per_s * kib_per_block, 2 * blocks_per_s, requests_per_s)


def _message_bytes(num_blocks: int, block_size: int) -> int:
    """Of a request's blocks and as many that made room for them, as they are told."""
    hashes = [number.to_bytes(16) for number in range(1, num_blocks + 1)]
    told = [Change(one, False) for one in hashes]
    told += [Change(one, True, parent) for parent, one in pairwise([bytes(16), *hashes])]
    payload = msgspec.msgpack.encode(KVEventBatch(0.0, events_of(told, block_size)))
    return len(payload) + _FRAMES_BYTES


@dataclass(frozen=True, slots=True)
class Told:
    """One way of telling."""

    kib_per_s: float
    """By a replica."""
    cores: float
    """Of a door, for a replica."""


@dataclass(frozen=True, slots=True)
class StateLoad:
    """Both ways, and what finding the changes takes."""

    whole: Told
    changes: Told
    replica_cores: float
    """Of a replica, for each door, to find what has changed and to encode it."""
    bytes_per_tenant: float
    """Of a door's memory, for each that a replica knows."""


def measure_states(num_tenants: int, num_live: int, seed: int) -> StateLoad:
    """Of replicas that know so many tenants each, of which some have requests."""
    draw = random.Random(f"states {seed}")
    lives = [_life(draw, num_tenants, num_live) for _ in range(_REPLICAS)]
    gc.collect()
    gc.freeze()  # what replicas have is not in a door's memory
    try:
        whole, _ = _told(lives, changes=False)
        changes, replica_cores = _told(lives, changes=True)
    finally:
        gc.unfreeze()
    return StateLoad(whole, changes, replica_cores, _bytes_per_tenant(lives))


def _bytes_per_tenant(lives: list[list[EngineStats]]) -> float:
    messages = [msgspec.msgpack.encode(state_since(None, one[0], books=True)) for one in lives]
    tracemalloc.start()
    ledger, turns = LeaseLedger(), Turns()
    for replica, message in enumerate(messages):
        _take(ledger, turns, replica, message)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / sum(len(one[0].tenants) for one in lives)


def _told(lives: list[list[EngineStats]], *, changes: bool) -> tuple[Told, float]:
    ledger, turns = LeaseLedger(), Turns()
    told: list[Mapping[str, TenantStats] | None] = [None] * len(lives)
    size, taking, finding = 0, 0.0, 0.0
    for beat, said in enumerate(zip(*lives, strict=True)):
        for replica, stats in enumerate(said):
            began = time.process_time()
            state = state_since(told[replica] if changes else None, stats, books=True)
            message = msgspec.msgpack.encode(state)
            encoded = time.process_time()
            _take(ledger, turns, replica, message)
            ended = time.process_time()
            told[replica] = stats.tenants
            if beat >= _FIRST_BEATS:
                size += len(message)
                finding += encoded - began
                taking += ended - encoded
    seconds = (_BEATS - _FIRST_BEATS) * len(lives) * BEAT_SECONDS
    return Told(size / 1024 / seconds, taking / seconds), finding / seconds


def _take(ledger: LeaseLedger, turns: Turns, replica: int, message: bytes) -> None:
    """As `app.cluster.door.fleet` does."""
    state = decode_to_door(message)
    assert isinstance(state, State)
    ledger.observe(replica, state.stats.tenants, state.gone, books=state.books)
    turns.observe(replica, state.stats.tenants, state.gone)


def _life(draw: random.Random, num_tenants: int, num_live: int) -> list[EngineStats]:
    """What a replica's engine says, beat by beat."""
    names = [f"tenant-{number:06}" for number in range(num_tenants)]
    tenants = dict.fromkeys(names, _IDLE)
    live = draw.sample(names, num_live)
    said: list[EngineStats] = []
    for _ in range(_BEATS):
        leaving = max(1, round(num_live * _TURNOVER))
        for name in live[:leaving]:
            tenants[name] = msgspec.structs.replace(tenants[name], running=0, blocks_held=0)
        live = live[leaving:] + draw.sample(names, leaving)
        for name in live:
            served = tenants[name].served + draw.uniform(1, 500)
            tenants[name] = msgspec.structs.replace(_IDLE, running=1, blocks_held=90, served=served)
        said.append(_stats(dict(tenants)))
    return said


def _stats(tenants: dict[str, TenantStats]) -> EngineStats:
    needed = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
    return msgspec.convert(needed | {"tenants": tenants}, EngineStats)
