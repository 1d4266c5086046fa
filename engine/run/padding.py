"""A batch of decoding sequences, made larger: to one of few shapes, which can each be recorded.

Rows are added that compute nothing of use: one token each, in a block that belongs to nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.run.batch import Batch
from kernels.types import AttentionBatch, PrefixGroups

_LEAST_CONTEXT = 1024
_LEAST_GROUPS = 4
_Tree = TypeVar("_Tree")


class GroupShape(NamedTuple):
    """The capacity of a group table."""

    num_groups: int
    num_members: int
    """Of all groups together."""
    max_members: int


class Shape(NamedTuple):
    """Batches of one shape differ in nothing but the contents of their tensors."""

    rows: int
    width: int
    """Of the block tables, in blocks."""
    groups: GroupShape | None


def row_buckets(most: int) -> list[int]:
    """Numbers of rows up to `most`: powers of two, then steps of 8, of 16 from 64, 32 from 128."""
    buckets = [1, 2, 4]
    while buckets[-1] < most:
        step = 8 if buckets[-1] < 64 else 16 if buckets[-1] < 128 else 32
        buckets.append(buckets[-1] // step * step + step)
    return [min(bucket, most) for bucket in buckets[: bisect_left(buckets, most) + 1]]


@dataclass(frozen=True, slots=True)
class Padder:
    """Makes batches larger, to rows in one of `buckets`."""

    buckets: list[int]
    block_size: int
    null_block: int
    """Belongs to nobody: what is written there is never read."""
    max_context: int
    has_lengths: bool = False
    """Whether batches say which of their tokens are in long sequences."""

    def shape_of(self, batch: Batch) -> Shape | None:
        """The smallest shape that holds `batch`, if one does and it is for decoding alone."""
        attention = batch.attention
        num_rows = len(attention.context_lens)
        is_larger = num_rows > self.buckets[-1] or attention.max_context_len > self.max_context
        if attention.max_query_len > 1 or is_larger:
            return None
        rows = self.buckets[bisect_left(self.buckets, num_rows)]
        context = max(_power_of_two(attention.max_context_len), _LEAST_CONTEXT)
        groups = None if attention.groups is None else _group_shape(attention.groups, rows)
        return Shape(rows, self._blocks(min(context, self.max_context)), groups)

    def smallest_shapes(self) -> list[Shape]:
        """The shapes of batches of short sequences, without groups, the fewest rows first."""
        width = self._blocks(min(_LEAST_CONTEXT, self.max_context))
        return [Shape(rows, width, None) for rows in self.buckets]

    def pad(self, batch: Batch, shape: Shape) -> Batch:
        """`batch`, in the host's memory, in that shape; every row has logits."""
        attention = batch.attention
        extra = shape.rows - len(attention.context_lens)
        missing = shape.width - attention.block_tables.shape[1]
        tables = pad(attention.block_tables, (0, missing, 0, extra))
        tables[shape.rows - extra :, 0] = self.null_block
        return Batch(
            token_ids=pad(batch.token_ids, (0, extra)),
            positions=pad(batch.positions, (0, extra)),
            logit_rows=torch.arange(shape.rows),
            is_long=None if batch.is_long is None else pad(batch.is_long, (0, extra)),
            attention=replace(
                attention,
                block_tables=tables,
                query_starts=torch.arange(shape.rows + 1, dtype=torch.int32),
                context_lens=pad(attention.context_lens, (0, extra), value=1),
                slots=pad(attention.slots, (0, extra), value=self.null_block * self.block_size),
                max_query_len=1,
                max_context_len=shape.width * self.block_size,
                groups=_pad_groups(attention.groups, shape),
            ),
        )

    def nothing(self, shape: Shape) -> Batch:
        """A batch of that shape, without groups, in which every row is one of those added."""
        is_long = torch.zeros(0, dtype=torch.bool) if self.has_lengths else None
        none = torch.zeros(0, dtype=torch.int64)
        few = torch.zeros(0, dtype=torch.int32)
        attention = AttentionBatch(few.reshape(0, 1), few, few, none, 1, 1)
        return self.pad(Batch(none, none, none, attention, is_long), shape)

    def _blocks(self, context: int) -> int:
        return -(-context // self.block_size)


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in nested dataclasses, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if not is_dataclass(tree):
        return []
    return [part for field in fields(tree) for part in tensors_of(getattr(tree, field.name))]


def with_tensors(tree: _Tree, tensors: list[Tensor]) -> _Tree:
    """The same with other tensors, in the order of `tensors_of`."""
    left = iter(tensors)

    def rebuilt(part: Any) -> Any:
        if isinstance(part, Tensor):
            return next(left)
        if not is_dataclass(part) or isinstance(part, type):
            return part
        return replace(part, **{f.name: rebuilt(getattr(part, f.name)) for f in fields(part)})

    result: _Tree = rebuilt(tree)
    return result


def _group_shape(groups: PrefixGroups, rows: int) -> GroupShape:
    """Room for a group of every four rows, and for every row in one: what most batches have, so
    that groups that come and go do not each ask for another graph."""
    return GroupShape(
        max(_power_of_two(len(groups.begins)), _power_of_two(rows) // 4, _LEAST_GROUPS),
        max(_power_of_two(len(groups.members)), _power_of_two(rows), 2 * _LEAST_GROUPS),
        _power_of_two(groups.max_members),
    )


def _pad_groups(groups: PrefixGroups | None, shape: Shape) -> PrefixGroups | None:
    """Added groups have no keys and no members."""
    if groups is None or shape.groups is None:
        return None
    capacity = shape.groups
    extra = capacity.num_groups - len(groups.begins)
    return PrefixGroups(
        begins=pad(groups.begins, (0, extra)),
        ends=pad(groups.ends, (0, extra)),
        member_starts=pad(groups.member_starts, (0, extra), value=len(groups.members)),
        members=pad(groups.members, (0, capacity.num_members - len(groups.members))),
        private_starts=pad(groups.private_starts, (0, shape.rows - len(groups.private_starts))),
        max_members=capacity.max_members,
    )


def _power_of_two(count: int) -> int:
    """The smallest one that is not less."""
    return 1 << max(0, count - 1).bit_length()
