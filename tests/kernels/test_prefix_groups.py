"""Groups are what the block tables say: every key once and in order, found anew or kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.prefix_groups import GroupFinder, GroupingRule, HostGroups
from tests.effort import scaled
from tests.kernels.batches import EVERY_RUN

BLOCK_SIZE = 4


class Batch:
    """Rows of (blocks, tokens with KV, queries)."""

    def __init__(self, rows: list[tuple[list[int], int, int]]) -> None:
        self.rows = rows
        width = max((len(blocks) for blocks, _, _ in rows), default=0)
        self.tables = np.zeros((len(rows), width), np.int32)
        for row, (blocks, _, _) in enumerate(rows):
            self.tables[row, : len(blocks)] = blocks
        self.context_lens = np.array([context for _, context, _ in rows], np.int32)
        self.query_lens = np.array([count for _, _, count in rows], np.int32)

    def find(self, rule: GroupingRule = EVERY_RUN) -> HostGroups | None:
        """Without having seen any other batch."""
        finder = GroupFinder(BLOCK_SIZE, rule)
        return finder.find(self.tables, self.query_lens, self.context_lens)

    def shareable(self, row: int) -> list[int]:
        """The blocks of a decoding sequence that this step leaves alone."""
        blocks, context, count = self.rows[row]
        return blocks[: (context - 1) // BLOCK_SIZE] if count == 1 else []


def decoding(*tables: list[int]) -> Batch:
    """Sequences whose newest token is the first of their last block."""
    return Batch([(blocks, (len(blocks) - 1) * BLOCK_SIZE + 1, 1) for blocks in tables])


def listed(groups: HostGroups | None) -> list[tuple[int, int, list[int]]]:
    """(first block, end, members) of each group, sorted."""
    if groups is None:
        return []
    members = [
        groups.members[first:last].tolist() for first, last in pairwise(groups.member_starts)
    ]
    begins, ends = (groups.begins // BLOCK_SIZE).tolist(), (groups.ends // BLOCK_SIZE).tolist()
    return sorted(zip(begins, ends, members, strict=True))


def brute_force(batch: Batch) -> list[tuple[int, int, list[int]]]:
    """The same by comparing every beginning of every sequence with all others."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(batch.rows)):
        blocks = batch.shareable(row)
        for depth in range(1, len(blocks) + 1):
            holders.setdefault(tuple(blocks[:depth]), []).append(row)
    shared = {blocks: rows for blocks, rows in holders.items() if len(rows) > 1}
    groups = []
    for blocks, rows in shared.items():
        if any(other[:-1] == blocks and shared[other] == rows for other in shared):
            continue  # the run goes on
        depth = len(blocks)
        while depth and shared[blocks[:depth]] == rows:
            depth -= 1
        groups.append((depth, len(blocks), rows))
    return sorted(groups)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Trees of blocks: each sequence goes on from somewhere in another one, or begins anew."""
    fresh = iter(range(1, 1000))
    rows: list[tuple[list[int], int, int]] = []
    for _ in range(draw(st.integers(1, 9))):
        source = draw(st.sampled_from(rows))[0] if rows and draw(st.booleans()) else []
        kept = source[: draw(st.integers(0, len(source)))]
        own = draw(st.integers(1, 4)) if len(kept) < 2 else draw(st.integers(0, 3))
        blocks = kept + [next(fresh) for _ in range(own)]
        context = draw(st.integers((len(blocks) - 1) * BLOCK_SIZE + 1, len(blocks) * BLOCK_SIZE))
        count = draw(st.sampled_from([1, 1, 1, 1, 3]))
        rows.append((blocks, context, min(count, context)))
    return Batch(draw(st.permutations(rows)))


@settings(max_examples=scaled(150))
@given(batches())
def test_groups_are_the_shared_runs_that_comparing_all_beginnings_finds(batch: Batch) -> None:
    assert listed(batch.find()) == brute_force(batch)


@settings(max_examples=scaled(150))
@given(batches(), st.integers(2, 4), st.integers(0, 10), st.sampled_from([1, BLOCK_SIZE, 6]))
def test_every_key_is_read_once_and_in_order_whatever_the_rule(
    batch: Batch, least_members: int, least_saved_keys: int, whole: int
) -> None:
    rule = GroupingRule(least_members, least_saved_keys, whole)
    groups = batch.find(rule)
    if groups is None:
        return
    reached = [0] * len(batch.rows)
    for begin, end, (first, last) in zip(
        groups.begins, groups.ends, pairwise(groups.member_starts), strict=True
    ):
        members = groups.members[first:last].tolist()
        assert members == sorted(set(members))
        assert len(members) >= least_members
        assert (len(members) - 1) * (end - begin) >= least_saved_keys * len(members)
        assert begin % whole == end % whole == 0
        blocks = batch.tables[members, begin // BLOCK_SIZE : -(-end // BLOCK_SIZE)]
        assert (blocks == blocks[0]).all()
        for row in members:
            assert reached[row] == begin < end <= len(batch.shareable(row)) * BLOCK_SIZE
            reached[row] = int(end)
    assert groups.private_starts.tolist() == reached
    assert groups.max_members == np.diff(groups.member_starts).max()
    arrays = (groups.begins, groups.ends, groups.member_starts, groups.members)
    assert {array.dtype for array in (*arrays, groups.private_starts)} == {np.dtype(np.int32)}


@settings(max_examples=scaled(150))
@given(st.data(), batches())
def test_kept_groups_are_those_found_anew(data: st.DataObject, batch: Batch) -> None:
    """Steps of an engine: sequences decode, grow, leave, come, change places, are forked."""
    finder = GroupFinder(BLOCK_SIZE, EVERY_RUN)
    fresh = iter(range(1000, 10_000))
    for _ in range(12):
        assert listed(finder.find(batch.tables, batch.query_lens, batch.context_lens)) == listed(
            batch.find()
        )
        rows = [(list(blocks), context + 1, 1) for blocks, context, _ in batch.rows]
        event = data.draw(st.sampled_from(["decode", "decode", "decode", "share", "fork", "swap"]))
        row = data.draw(st.integers(0, len(rows) - 1))
        blocks, context, _ = rows[row]
        if event == "share":  # another sequence's next blocks, found in the cache
            longest = max((other for other, _, _ in rows if other[:1] == blocks[:1]), key=len)
            rows[row] = (list(longest), max(context, len(longest) * BLOCK_SIZE), 1)
        elif event == "fork":
            rows.append((list(blocks), context, 1))
        elif event == "swap":
            there = data.draw(st.integers(0, len(rows) - 1))
            rows[row], rows[there] = rows[there], rows[row]
        for blocks, context, _ in rows:
            while len(blocks) * BLOCK_SIZE < context:
                blocks.append(next(fresh))
        batch = Batch(rows[-10:])


def test_a_decode_step_returns_the_very_groups_of_the_last() -> None:
    rows = [([1, 2, 3, 6], 13, 1), ([1, 2, 4, 7], 16, 1), ([5, 8], 8, 1)]
    finder = GroupFinder(BLOCK_SIZE, EVERY_RUN)
    first = Batch(rows)
    groups = finder.find(first.tables, first.query_lens, first.context_lens)
    assert listed(groups) == [(0, 2, [0, 1])]
    grown = Batch([([1, 2, 3, 6], 14, 1), ([1, 2, 4, 7, 9], 17, 1), ([5, 8, 10], 9, 1)])
    assert finder.find(grown.tables, grown.query_lens, grown.context_lens) is groups


def test_levels_of_a_share_group_two_tenants_and_a_fork_in_any_row_order() -> None:
    share, one, other = [1, 2], [3, 4, 5], [6]
    batch = decoding(
        [*share, *one, 10],
        [*share, *other, 11],
        [*share, *one, 20, 21, 12],
        [*share, *other, 13],
        [*share, *one, 20, 21, 14],
    )
    assert listed(batch.find()) == [
        (0, 2, [0, 1, 2, 3, 4]),
        (2, 3, [1, 3]),
        (2, 5, [0, 2, 4]),
        (5, 7, [2, 4]),
    ]


def test_the_same_block_behind_different_ones_is_not_shared() -> None:
    assert decoding([1, 2, 3, 9], [4, 2, 3, 8]).find() is None


def test_a_run_ends_before_the_block_that_a_member_writes() -> None:
    blocks = [1, 2]
    written = Batch([(blocks, 2 * BLOCK_SIZE, 1), ([1, 2, 3], 2 * BLOCK_SIZE + 1, 1)])
    assert listed(written.find()) == [(0, 1, [0, 1])]


def test_prompts_are_no_members() -> None:
    batch = Batch([([1, 2, 3], 9, 1), ([1, 2, 4], 9, 2), ([1, 2, 5], 9, 1)])
    assert listed(batch.find()) == [(0, 2, [0, 2])]


def test_a_run_too_short_to_pay_is_read_with_those_behind_it() -> None:
    batch = decoding([1, 2, 3, 4, 10], [1, 2, 3, 4, 11], [1, 5, 12], [1, 5, 13])
    paying = batch.find(GroupingRule(least_saved_keys=1))
    assert listed(paying) == [(0, 1, [0, 1, 2, 3]), (1, 2, [2, 3]), (1, 4, [0, 1])]
    one_key_more = batch.find(GroupingRule(least_saved_keys=2))
    assert listed(one_key_more) == [(0, 2, [2, 3]), (0, 4, [0, 1])]


def test_a_run_pays_by_what_each_member_saves() -> None:
    rule = GroupingRule(least_members=3, least_saved_keys=128)
    assert not rule.pays(num_members=2, num_reads=2, num_keys=10_000)
    assert rule.pays(num_members=4, num_reads=4, num_keys=171)
    assert not rule.pays(num_members=4, num_reads=4, num_keys=170)
    assert not rule.pays(num_members=4, num_reads=2, num_keys=171), "most of it is saved further in"


def test_spared_keys_count_what_members_after_the_first_do_not_read() -> None:
    groups = decoding([1, 2, 9], [1, 2, 8], [1, 7]).find()
    assert groups is not None
    assert listed(groups) == [(0, 1, [0, 1, 2]), (1, 2, [0, 1])]
    assert groups.num_spared_keys == (2 * 1 + 1 * 1) * BLOCK_SIZE


def test_a_sequence_alone_is_in_no_group() -> None:
    assert decoding([1, 2, 3]).find() is None
