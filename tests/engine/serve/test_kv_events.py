"""KV events: what the pool notes of its blocks, and how that is encoded."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from engine.api import EngineError
from engine.blocks.changes import Change, Changes
from engine.config import EngineConfig
from engine.serve.kv_events import AllBlocksCleared, KVEventBatch, KVEventPublisher, events_of
from tests.engine.simulation import make_request, simulated_core

A, B, C = (bytes([number] * 16) for number in (1, 2, 3))

VLLM = bytes.fromhex(
    "93cb3ff80000000000009481a474797065b0416c6c426c6f636b73436c656172656488a474797065ab426c6f636b53"
    "746f726564ac626c6f636b5f68617368657392c41001010101010101010101010101010101c4100202020202020202"
    "0202020202020202b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f7369"
    "7a6510a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c088a474797065ab426c6f636b53"
    "746f726564ac626c6f636b5f68617368657391c41003030303030303030303030303030303b1706172656e745f626c"
    "6f636b5f68617368c41002020202020202020202020202020202a9746f6b656e5f69647390aa626c6f636b5f73697a"
    "6510a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c083a474797065ac426c6f636b5265"
    "6d6f766564ac626c6f636b5f68617368657391c41003030303030303030303030303030303a66d656469756da34750"
    "5500"
)
"""What the classes of vLLM 0.32 make of the events below."""


def test_events_are_encoded_as_vllm_does() -> None:
    stored = events_of([Change(A, True), Change(B, True, A)], 16) + events_of(
        [Change(C, True, B), Change(C, False)], 16
    )
    batch = KVEventBatch(1.5, [AllBlocksCleared(), *stored], 0)
    assert msgspec.msgpack.encode(batch) == VLLM


def test_a_chain_is_one_event_and_another_begins_anew() -> None:
    changes = [Change(A, True), Change(B, True, A), Change(C, True, A), Change(A, False)]
    hashes = [event.block_hashes for event in events_of([*changes, Change(B, False)], 16)]
    assert hashes == [[A, B], [C], [A, B]]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_changes_tell_what_the_pool_holds_under_any_load(runs_ahead: bool) -> None:
    rng = random.Random(int(runs_ahead))
    core = simulated_core(num_blocks=48, num_host_blocks=16, runs_ahead=runs_ahead)
    pool = core.scheduler.pool
    core.scheduler.tiers.changes = changes = Changes()
    present: set[bytes] = set()
    num_evicted = 0
    for number in range(120):
        prompt = [rng.randrange(3, 6) for _ in range(rng.randrange(1, 60))]
        core.submit(make_request(f"r{number}", prompt, max_tokens=rng.randrange(1, 20)))
        if rng.random() < 0.1:
            core.abort(f"r{rng.randrange(number + 1)}")
        if rng.random() < 0.03:
            core.forget_tenant("tenant")
        for _ in range(rng.randrange(6)):
            core.step()
            core.scheduler.check()
            for change in changes.take():
                assert change.is_stored == (change.block_hash not in present)
                present ^= {change.block_hash}
                num_evicted += not change.is_stored
            hashes = map(pool.hash_of, range(pool.num_blocks))
            assert present == {one for one in hashes if one is not None}
    assert num_evicted > 20


def test_a_stored_block_names_the_one_before_it() -> None:
    core = simulated_core(num_blocks=48)
    core.scheduler.tiers.changes = changes = Changes()
    core.submit(make_request("a", list(range(3, 3 + 3 * core.info.block_size)), max_tokens=1))
    while not core.is_idle:
        core.step()
    stored = changes.take()
    assert len(stored) == 3
    assert [one.parent for one in stored] == [None, stored[0].block_hash, stored[1].block_hash]


def test_an_endpoint_that_is_taken_is_named(tmp_path: Path) -> None:
    config = EngineConfig(model_path="", kv_events=f"ipc://{tmp_path}/no/such/folder")
    with pytest.raises(EngineError, match="kv_events: cannot bind ipc://"):
        KVEventPublisher(config, Changes(), 16)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kv_events": "5557"}, "kv_events: '5557' begins with none"),
        ({"kv_events_replay": "ipc:///x"}, "kv_events_replay: goes with kv_events"),
    ],
)
def test_settings_that_cannot_work_are_named(fields: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EngineConfig(model_path="", **fields)
