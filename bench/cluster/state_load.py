"""What a door takes in of replicas' tenants twice a second: all of them, and those that changed."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from app.cluster.door.fairness import Turns
from app.cluster.door.ledger import LeaseLedger
from app.cluster.messages import State, decode_to_door, state_since
from app.cluster.node.replica import BEAT_SECONDS
from engine.api import EngineStats, TenantStats

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
        whole, _ = _measure(lives, changes=False)
        changes, replica_cores = _measure(lives, changes=True)
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


def _measure(lives: list[list[EngineStats]], *, changes: bool) -> tuple[Told, float]:
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
