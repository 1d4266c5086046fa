"""Prefill's work is cut so that it fills a device, and every key is attended to once."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.triton import plan
from kernels.triton.plan import ChunkCut, ChunkPlan, plan_chunks
from kernels.types import Chunk

H100 = 132
LLAMA_3_8B = ChunkCut(
    queries=32, rows=128, keys=128, num_kv_heads=8, window=0, chunk=0, num_programs=H100
)
SMALL = ChunkCut(queries=5, rows=16, keys=4, num_kv_heads=2, window=0, chunk=0, num_programs=7)
FIXED = replace(SMALL, fixed_keys=16)

sequences = st.integers(2, 90).flatmap(lambda n: st.tuples(st.just(n), st.integers(2, n)))
batches = st.lists(sequences, min_size=1, max_size=6)


def chunks(*seqs: tuple[int, int]) -> tuple[Chunk, ...]:
    """Of sequences, each (context length, queries)."""
    starts = accumulate((count for _, count in seqs), initial=0)
    every = zip(seqs, starts, strict=False)
    return tuple(
        Chunk(row, start, count, context) for row, ((context, count), start) in enumerate(every)
    )


def only(plans: list[ChunkPlan]) -> ChunkPlan:
    (one,) = plans
    return one


def lengths(found: ChunkPlan) -> list[int]:
    """Keys of each part."""
    return (found.parts[:, 6] - found.parts[:, 5]).tolist()


def test_twenty_tokens_behind_8k_fill_the_device() -> None:
    found = only(plan_chunks(chunks((8212, 20)), LLAMA_3_8B))
    assert H100 <= len(found.parts) <= H100 + 8
    assert max(lengths(found)) <= -(-8 * 8212 // H100) + 128
    assert len(found.merges) == 8


@pytest.mark.parametrize(("heads", "tiles"), [(3, 1), (4, 1), (6, 1), (8, 2)])
def test_heads_that_share_keys_are_packed_into_a_tile(heads: int, tiles: int) -> None:
    cut = replace(LLAMA_3_8B, queries=128 // heads)
    found = only(plan_chunks(chunks((40, 20)), cut))
    assert len(found.parts) == tiles * cut.num_kv_heads


def test_a_chunk_that_fills_the_device_alone_is_not_split() -> None:
    found = only(plan_chunks(chunks((2048, 2048)), LLAMA_3_8B))
    assert len(found.parts) == 64 * 8
    assert not len(found.merges)
    assert found.num_slots == 0


def test_a_chunk_beside_a_long_context_waits_for_no_straggler() -> None:
    found = only(plan_chunks(chunks((8212, 20), (2000, 2000)), LLAMA_3_8B))
    assert max(lengths(found)) <= 1.1 * sum(lengths(found)) / H100
    units = [-(-length // 128) for length in lengths(found)]
    assert units == sorted(units, reverse=True)


def test_a_short_context_is_not_worth_merging() -> None:
    found = only(plan_chunks(chunks((500, 20)), LLAMA_3_8B))
    assert (len(found.parts), len(found.merges)) == (8, 0)


def test_an_even_cut_has_few_slots_whatever_the_step() -> None:
    found = only(plan_chunks(chunks((100_000, 300), (3000, 3000)), LLAMA_3_8B))
    assert len(found.merges)
    assert found.num_slots <= 3 * H100


@pytest.mark.parametrize("cut", [SMALL, FIXED], ids=["even", "fixed"])
@given(
    seqs=batches,
    window=st.sampled_from([0, 1, 7, 30]),
    chunk=st.sampled_from([0, 1, 9, 40]),
    eager=st.booleans(),
)
def test_every_query_attends_to_every_key_once(
    cut: ChunkCut, seqs: list[tuple[int, int]], window: int, chunk: int, eager: bool
) -> None:
    def first_seen(position: int) -> int:
        oldest = position - window + 1 if window else 0
        return max(0, oldest, position // chunk * chunk if chunk else 0)

    cut = replace(cut, window=window, chunk=chunk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_MOST_SLOTS", 9)
        if eager:
            patch.setattr(plan, "_MERGE_KEYS", -1000)  # always worth it
        plans = plan_chunks(chunks(*seqs), cut)
    seen = np.zeros((cut.num_kv_heads, sum(count for _, count in seqs), 90), int)
    for found in plans:
        slots = sorted(slot for slot in found.parts[:, 7].tolist() if slot >= 0)
        assert slots == list(range(found.num_slots))
        ranges = [range(first, last + 1) for *_, first, last in found.merges.tolist()]
        assert all(len(one) > 1 for one in ranges)
        assert sorted(slot for one in ranges for slot in one) == slots
        for _, token, count, position, head, begin, end, slot in found.parts.tolist():
            assert begin % cut.keys == 0
            owners = [row[:3] for row in found.merges.tolist() if row[3] <= slot <= row[4]]
            assert owners == ([[token, count, head]] if slot >= 0 else [])
            for query in range(count):
                first = max(begin, first_seen(position + query))
                seen[head, token + query, first : min(end, position + query + 1)] += 1
    for one in chunks(*seqs):
        for query in range(one.num_queries):
            position = one.context_len - one.num_queries + query
            expected = np.zeros(90, int)
            expected[first_seen(position) : position + 1] = 1
            assert (seen[:, one.first_token + query] == expected).all()


@given(seqs=batches)
def test_a_fixed_cut_depends_on_positions_alone(seqs: list[tuple[int, int]]) -> None:
    for found in plan_chunks(chunks(*seqs), FIXED):
        for *_, begin, end, _ in found.parts.tolist():
            assert begin % FIXED.fixed_keys == 0
            assert end - begin <= FIXED.fixed_keys


def test_a_fixed_cut_of_much_is_several_launches() -> None:
    plans = plan_chunks(chunks((32_768, 2048)), replace(LLAMA_3_8B, fixed_keys=512))
    assert len(plans) > 1
    assert all(found.num_slots <= 2048 + 64 for found in plans)
