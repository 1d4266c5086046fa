"""Batches made larger, in one copy, and how many sizes of them memory allows to record."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.batch.staging import num_bytes, refill, upload, views
from engine.run.graphs.padding import Padder, row_buckets, tensors_of, with_tensors
from engine.run.graphs.recording import record_sizes
from kernels.types import PrefixGroups
from tests.engine.run.test_graphs import BLOCK, CPU, decode_batch


class Device:
    """One whose graphs take memory as they do: the first that of all, each a little of its own."""

    def __init__(self, first: int, each: int) -> None:
        self.first, self.each = first, each
        self.recorded: list[int] = []

    def record(self, size: int) -> None:
        self.recorded.append(size)

    def used(self) -> int:
        count = len(self.recorded)
        return 7 + self.first * (count > 0) + self.each * count


@pytest.mark.parametrize(
    ("room", "kept"),
    [
        (1000, [8, 7, 6, 5, 4, 3, 2, 1]),
        (180, [8, 7, 6, 5, 4, 3, 2, 1]),
        (150, [8, 7, 5, 3, 1]),
        (130, [8, 7, 1]),
        (120, [8, 7]),
        (100, [8]),
    ],
)
def test_graphs_take_no_more_memory_than_they_may(
    room: int, kept: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(first=100, each=10)
    costs = record_sizes(range(1, 9), device.record, device.used, room)
    assert list(costs) == device.recorded == kept
    assert sum(costs.values()) <= room or kept == [8]
    assert ("CUDA graphs may take" in caplog.text) == (len(kept) < 8)


def test_there_are_few_numbers_of_rows_and_none_is_far_off() -> None:
    assert row_buckets(8) == [1, 2, 4, 8]
    assert row_buckets(6) == [1, 2, 4, 6]
    assert row_buckets(1) == [1]
    buckets = row_buckets(300)
    assert buckets[-1] == 300
    assert len(buckets) < 25
    for rows in range(33, 300):
        bucket = next(bucket for bucket in buckets if bucket >= rows)
        assert bucket - rows < rows / 4


def test_group_tables_are_padded_with_groups_without_keys() -> None:
    rng = random.Random(4)
    batch = decode_batch(rng, [40, 41, 42, 9, 50], 60)
    groups = PrefixGroups(
        begins=torch.tensor([0, 0, 16], dtype=torch.int32),
        ends=torch.tensor([16, 8, 24], dtype=torch.int32),
        member_starts=torch.tensor([0, 2, 4, 6], dtype=torch.int32),
        members=torch.tensor([0, 1, 2, 4, 0, 1], dtype=torch.int32),
        private_starts=torch.tensor([24, 24, 8, 0, 8], dtype=torch.int32),
        max_members=2,
    )
    batch = replace(batch, attention=replace(batch.attention, groups=groups))
    padder = Padder(row_buckets(8), BLOCK, null_page=60, max_context=480)
    table = padder.pad(batch, 8).attention.groups
    assert table is not None
    assert len(table.begins) == len(table.ends) == len(table.member_starts) - 1 == 4
    assert table.members.tolist() == [0, 1, 2, 4, 0, 1] + [-1] * 10, "padding is nobody"
    assert table.private_starts.tolist() == [24, 24, 8, 0, 8, 0, 0, 0]
    assert table.max_members == 8
    for group in range(4):
        own = table.members[table.member_starts[group] : table.member_starts[group + 1]].tolist()
        if group < 3:
            first, last = groups.member_starts[group : group + 2].tolist()
            assert own == groups.members[first:last].tolist()
            assert table.begins[group] == groups.begins[group]
            assert table.ends[group] == groups.ends[group]
        else:
            assert (own, table.begins[group], table.ends[group]) == ([], 0, 0)
    empty = padder.pad(decode_batch(rng, [40] * 5, 60), 8).attention.groups
    assert empty is not None
    assert [len(tensor) for tensor in tensors_of(empty)] == [
        len(tensor) for tensor in tensors_of(table)
    ], "with groups or without, it is one shape"
    assert padder.pad(decode_batch(rng, [40], 60), 1).attention.groups is None


def test_inner_groups_are_left_out_where_there_is_no_room() -> None:
    """Their members read those keys alone."""
    batch = decode_batch(random.Random(4), [60] * 4, 60)
    deep = PrefixGroups(
        begins=torch.tensor([0, 8, 16], dtype=torch.int32),
        ends=torch.tensor([8, 16, 24], dtype=torch.int32),
        member_starts=torch.tensor([0, 4, 7, 9], dtype=torch.int32),
        members=torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1], dtype=torch.int32),
        private_starts=torch.tensor([24, 24, 16, 8], dtype=torch.int32),
        max_members=4,
    )
    batch = replace(batch, attention=replace(batch.attention, groups=deep))
    padder = Padder(row_buckets(4), BLOCK, null_page=60, max_context=480)
    table = padder.pad(batch, 4).attention.groups
    assert table is not None
    assert table.ends.tolist() == [8, 16], "room for two groups"
    assert table.members.tolist() == [0, 1, 2, 3, 0, 1, 2, -1]
    assert table.private_starts.tolist() == [16, 16, 16, 8]


def test_arrays_of_any_type_and_size_go_in_one_copy() -> None:
    arrays = [
        np.arange(5, dtype=np.int64),
        np.arange(7, dtype=np.int32).reshape(1, 7),
        np.zeros((0, 3), dtype=np.float32),
        np.linspace(0, 1, 6).reshape(2, 3).T,
        np.array([3], dtype=np.uint8),
    ]
    size = num_bytes(arrays)
    buffer = torch.full((size + 16,), 255, dtype=torch.uint8)
    refill(buffer[:size], arrays)
    for tensors in (upload(arrays, CPU), views(buffer[:size], arrays)):
        assert len(tensors) == len(arrays)
        for tensor, array in zip(tensors, arrays, strict=True):
            assert tensor.shape == array.shape
            assert np.array_equal(tensor.numpy(), array)
    assert (buffer[size:] == 255).all()


def test_a_batch_is_taken_apart_and_put_together_again() -> None:
    batch = decode_batch(random.Random(4), [40, 3], 60)
    tensors: list[Tensor] = tensors_of(batch)
    assert len(tensors) == 7
    again = with_tensors(batch, [tensor + 1 for tensor in tensors])
    assert torch.equal(again.attention.slots, batch.attention.slots + 1)
    assert again.attention.max_context_len == 40
