"""Replays of prompt traces, and the prompts that stand in for one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.common.traces import draw_prompts, load_conversations
from bench.engine import trace
from bench.registry import BenchError
from engine.blocks.eviction.policy import Eviction
from engine.blocks.pool import BlockPool

SCAN = [tuple(range(start, start + 5)) for start in range(1000, 1100, 5)]
CONVERSATION = (1, 2, 3, 4)


def hits(
    prompts: list[tuple[int, ...]], capacity: int, blocks_per_id: int = 1
) -> dict[Eviction, int]:
    pools: dict[Eviction, BlockPool] = {
        policy: BlockPool(capacity * blocks_per_id, policy) for policy in ("arc", "lru")
    }
    return {name: run.hits for name, run in trace.replay(prompts, pools, blocks_per_id).items()}


def test_a_replay_counts_the_longest_prefix_that_each_policy_has_kept() -> None:
    assert hits([(1, 2, 3), (1, 2, 4), (5, 2, 3)], 10) == {"arc": 2, "lru": 2}
    assert hits([CONVERSATION, CONVERSATION, *SCAN, CONVERSATION], 12) == {"arc": 7, "lru": 4}


def test_an_id_is_as_many_blocks_as_hold_its_tokens() -> None:
    prompts = draw_prompts(1, requests=200)
    one, four = (hits(prompts, 300, blocks_per_id) for blocks_per_id in (1, 4))
    assert 0 < one["lru"] * 4 <= four["lru"] < one["lru"] * 4.1, "a part of an id can be found, too"


def test_the_optimum_knows_what_is_needed_last() -> None:
    assert trace.optimal_hits([(1,), (2,), (3,), (1,), (2,), (3,)], 2) == 2
    assert trace.optimal_hits([(1,), (2,), (3,), (1,), (2,), (3,)], 3) == 3
    assert trace.optimal_hits([CONVERSATION, *SCAN, CONVERSATION], 9) == 4
    assert trace.optimal_hits([(1, 2, 3, 4), (1, 2, 3, 4)], 3) == 3, "the head is kept"


@pytest.mark.parametrize("seed", [0, 1])
def test_on_conversations_the_default_finds_more_than_recency_and_less_than_the_optimum(
    seed: int,
) -> None:
    prompts = draw_prompts(seed, requests=3000)
    for capacity, gain in ((1000, 1.2), (3000, 1.03), (10_000, 0.99)):
        found = hits(prompts, capacity)
        assert found["lru"] * gain < found["arc"] < trace.optimal_hits(prompts, capacity)


def test_drawn_prompts_have_the_statistics_of_the_conversation_trace() -> None:
    prompts = draw_prompts(0)
    total = sum(map(len, prompts))
    assert len(prompts) == 12_031
    assert 22 < total / len(prompts) < 26
    assert max(map(len, prompts)) <= 247
    assert {prompt[0] for prompt in prompts} == {0}
    unbounded = trace.optimal_hits(prompts, total) / total
    assert 0.34 < unbounded < 0.40
    assert 0.17 < trace.optimal_hits(prompts, 1000) / total < 0.22
    assert prompts == draw_prompts(0) != draw_prompts(1)
    assert all(a < b for prompt in prompts for a, b in pairwise(prompt)), "nothing comes twice"


def test_the_bench_reports_every_figure_of_a_trace_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "tiny.jsonl", tmp_path / "figures.json"
    prompts = [(7, *range(start, start + 299)) for start in (1000, 2000, 3000, 4000, 1000)]
    file.write_text("".join(json.dumps({"hash_ids": prompt}) + "\n" for prompt in prompts))
    options = ["--trace", str(file), "--block-size", "256", "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", "trace", *options])
    assert cli.main() == 0
    document = json.loads(out.read_text())
    figures = document["figures"]
    assert figures.keys() == trace.FIGURES.keys()
    assert {"hit_ratio_1000", "lru_hit_ratio_30000"} <= figures.keys()
    assert document["parameters"]["source"] == "tiny.jsonl"
    assert figures["unbounded_hit_ratio"] == 303 / 1500
    assert figures["hit_ratio_3000"] == figures["lru_hit_ratio_3000"] == 303 / 1500
    assert figures["lru_hit_ratio_1000"] == 106 / 1500, "of the first prompt the head is left"
    assert figures["optimal_hit_ratio_1000"] == 303 / 1500
    assert figures["us_per_block"] > 0 < figures["lru_us_per_block"]


def test_without_a_file_the_prompts_are_drawn(tmp_path: Path) -> None:
    found = load_conversations(tmp_path / "none.jsonl", seed=3)
    assert found.source == "synthetic, seed 3"
    assert found.prompts == draw_prompts(3)


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"hash_ids": 5}', '{"hash_ids": ["a"]}'])
def test_a_file_that_is_no_trace_is_refused_with_the_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"hash_ids": [1]}\n' + line + "\n")
    with pytest.raises(BenchError, match="line 2: "):
        load_conversations(file, seed=0)


def test_an_empty_trace_and_a_prompt_beyond_the_pool_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    with pytest.raises(BenchError, match="is empty"):
        load_conversations(file, seed=0)
    with pytest.raises(BenchError, match="prompt 2 is longer than 3 blocks"):
        hits([(1,), (1, 2, 3, 4)], 3)
