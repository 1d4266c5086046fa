"""What a replica tells of its blocks: bytes and blocks a second, at the pace of simulated ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from bench.cluster.replica import Pace
from bench.cluster.routing import Case, Setting, simulate
from bench.cluster.workloads import load_workload
from engine.blocks.listeners import Change
from engine.serve.kv_events import KVEventBatch, events_of

LOAD_PERCENT: Final = 90
_WORKLOAD: Final = "tenants"
_REPLICAS: Final = 4
_FRAMES_BYTES: Final = 2 * 9 + 8
"""Beside a message's payload: the heads of its frames, and the number."""


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
