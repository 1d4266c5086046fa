"""Replicas, front doors and workloads in simulated time."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.cluster import routing
from bench.cluster.policies import POLICIES, pooled_doors
from bench.cluster.replica import Pace, Replica
from bench.cluster.simulation import Cluster
from bench.cluster.workloads import (
    NUM_TENANTS,
    WORKLOADS,
    Request,
    Workload,
    load_workload,
    mooncake,
    tenants,
)
from bench.registry import BenchError

PACE = Pace(per_step=1.0, per_prompt_token=0.1, per_decoding=0.5, step_tokens=10, max_running=4)
NOWHERE = Path("nowhere")


def request(at: float, prompt: str, output_tokens: int, answer: str = "") -> Request:
    """A letter is a block of 4 tokens; the prompt has one token more."""
    prompt_hashes, answer_hashes = ([one.encode() for one in text] for text in (prompt, answer))
    return Request(at, 0, prompt_hashes, answer_hashes, 4 * len(prompt) + 1, output_tokens)


def replica(num_blocks: int = 20) -> Replica:
    return Replica(num_blocks, 4, PACE)


def run(one: Replica) -> list[tuple[float, int]]:
    """When first tokens came, and what was cached, by the time of the end."""
    while one.num_requests:
        one.step(float("inf"))
        one.pool.check()
    return [(served.first_token_at, served.cached_tokens) for served in one.take_ended()]


def test_a_prompt_is_computed_in_chunks_and_then_decodes_one_token_a_step() -> None:
    one = replica()
    one.submit(request(5.0, "abc", 3))
    assert one.queue_seconds == pytest.approx(13 / (10 / 2.0))
    assert run(one) == [(pytest.approx(5.0 + 2.0 + 1.3), 0)]
    assert one.clock == pytest.approx(8.3 + 2 * 1.5)
    assert (one.queue_seconds, one.kv_free_share) == (0.0, 1.0)


def test_what_decodes_takes_part_in_the_steps_of_prompts() -> None:
    one = replica()
    one.submit(request(0.0, "ab", 4))
    one.step(float("inf"))
    one.submit(request(0.0, "cd", 1))
    assert [round(first, 2) for first, _ in run(one)] == [1.9 + 1.5 + 0.9, 1.9]


def test_prompts_and_answers_are_found_by_who_comes_later_even_while_they_are_computed() -> None:
    one = replica()
    one.submit(request(0.0, "ab", 4, "c"))
    one.submit(request(0.0, "abd", 1))
    assert sorted(cached for _, cached in run(one)) == [0, 8]
    one.submit(request(20.0, "abcx", 1))
    assert run(one)[0][1] == 12


def test_a_request_waits_for_room_and_evicts_what_is_not_used() -> None:
    one = replica(num_blocks=6)
    for at, prompt in enumerate(("abc", "def", "ghi")):
        one.submit(request(float(at), prompt, 3))
    firsts = [first for first, _ in run(one)]
    assert firsts[1] - firsts[0] > 2, "two do not fit at once"
    stored, removed = Counter[bytes](), Counter[bytes]()
    for change in one.changes:
        stored.update(change.stored)
        removed.update(change.removed)
    assert stored - removed == Counter(key for key in one.pool._by_hash)


def small(replica_tokens: int = 65_536) -> Workload:
    return tenants(300, 1, replica_tokens)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_and_every_block_given_back(policy: str) -> None:
    workload = small()
    cluster = Cluster(workload, 4, Pace(), POLICIES[policy], pooled=False)
    outcome = cluster.serve(workload.lasting(20.0))
    assert len(outcome.ttft_s) == 225, "the first quarter warms"
    assert min(outcome.ttft_s) > 0
    assert outcome.prompt_tokens == sum(one.prompt_tokens for one in workload.counted)
    for one in cluster.replicas:
        one.pool.check()
        assert one.pool.num_in_use == 0
    held = [set(one.pool._by_hash) for one in cluster.replicas]
    for key in set().union(*held):
        holders = {number for number, keys in enumerate(held) if key in keys}
        assert cluster.index.depths([key]) == dict.fromkeys(holders, 1)


def test_replicas_with_one_pool_share_what_they_find() -> None:
    workload = small()
    apart, together = (
        Cluster(workload, 4, Pace(), pooled_doors, pooled=pooled) for pooled in (False, True)
    )
    hits = [one.serve(workload.lasting(60.0)).hit_ratio for one in (apart, together)]
    assert hits[0] < 0.9 * hits[1]
    assert len({id(one.pool) for one in together.replicas}) == 1
    together.replicas[0].pool.check()


def test_the_router_finds_nearly_what_one_cache_finds_and_answers_sooner_than_others() -> None:
    workload = tenants(800, 1, 131_072)
    found = {
        name: Cluster(workload, 4, Pace(), POLICIES[name], pooled=False).serve(
            workload.lasting(12.0)
        )
        for name in ("ours", "consistent_hash", "power_of_two")
    }
    pooled = Cluster(workload, 4, Pace(), pooled_doors, pooled=True).serve(workload.lasting(12.0))
    ours = found.pop("ours")
    assert ours.hit_ratio > 0.93 * pooled.hit_ratio
    assert all(ours.ttft_ms(99) < other.ttft_ms(99) for other in found.values())


def test_a_memory_smaller_than_a_request_is_refused() -> None:
    with pytest.raises(BenchError, match="memory is less than a request"):
        Cluster(small(1024), 4, Pace(), pooled_doors, pooled=False)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_in_order_and_chains_continue_each_other(name: str) -> None:
    workload = load_workload(name, NOWHERE, 0, 200)
    assert workload == load_workload(name, NOWHERE, 0, 200)
    assert workload != load_workload(name, NOWHERE, 1, 200)
    assert len(workload.requests) == 200
    assert all(one.at <= other.at for one, other in pairwise(workload.requests))
    before: dict[bytes, bytes] = {}
    for one in workload.requests:
        assert len(one.prompt_hashes) == one.prompt_tokens // workload.block_size
        chain = [b"", *one.prompt_hashes, *one.answer_hashes]
        for parent, child in pairwise(chain):
            assert before.setdefault(child, parent) == parent, "a hash says all that is before it"
    lasting = workload.lasting(10.0)
    assert lasting[0].at == 0.0
    assert lasting[-1].at - lasting[workload.num_warming].at == pytest.approx(10.0)


def test_tenants_are_popular_by_zipfs_law_and_their_conversations_go_on() -> None:
    requests = tenants(3000, 0, 524_288).requests
    heads = Counter(one.prompt_hashes[0] for one in requests)
    (_, first), (_, second), *_ = heads.most_common()
    assert 20 < len(heads) <= NUM_TENANTS + 50, "a short system prompt has no block of its own"
    assert 0.18 < first / 3000 < 0.32
    assert 1.3 < first / second < 3.0
    turns = Counter(one.session for one in requests)
    assert 2.0 < len(requests) / len(turns) < 4.5


def test_mooncakes_requests_are_read_with_their_times_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    row = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 5, 6]}
    file.write_text(json.dumps(row) + "\n")
    [one] = mooncake(file, 10, 0, 4096).requests
    assert (one.prompt_tokens, one.output_tokens, one.session) == (1100, 7, 5)
    assert len(one.prompt_hashes) == 2, "a block that is not full is found by nobody"
    assert 3 <= one.at < 6
    file.write_text(json.dumps(row) + "\n{}\n")
    with pytest.raises(BenchError, match="line 2"):
        mooncake(file, 10, 0, 4096)


def test_the_bench_reports_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "figures.json"
    small = ["--requests", "60", "--workloads", "tenants", "--processes", "1"]
    options = ["--traces", str(NOWHERE), *small, "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", "routing", *options])
    assert cli.main() == 0
    figures = json.loads(out.read_text())["figures"]
    assert list(figures) == list(routing.FIGURES)
    assert 0 < figures["hit_ratio_random"] < figures["hit_ratio_pooled"] < 1
    assert figures["ttft_ms_p50_ours"] <= figures["ttft_ms_p99_ours"]
    monkeypatch.setattr("sys.argv", ["bench", "routing", "--requests", "1"])
    assert cli.main() == 1
