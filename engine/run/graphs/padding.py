"""A batch of decoding sequences, made larger: to one of few numbers of rows, each of which can be
recorded.

Rows are added that compute nothing of use: one token each, in a page that belongs to nobody. All
else that differs between batches has room for whatever such a batch may have.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.batch.batch import Batch, MoreColumns, pack
from kernels.types import PrefixGroups

_MEMBERSHIPS_OF_A_ROW = 2
_NOBODY = -1
"""No row: a member of that number is none."""
_Tree = TypeVar("_Tree")


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
    null_page: int
    """Belongs to nobody: what is written there is never read."""
    max_context: int
    has_groups: bool = True
    """Whether batches may have groups."""
    has_lengths: bool = False
    """Whether batches say which of their tokens are in long sequences."""
    num_columns: int = 1
    """Of block tables and slots."""

    @property
    def width(self) -> int:
        """Blocks of the longest context."""
        return -(-self.max_context // self.block_size)

    def fits(self, batch: Batch) -> bool:
        """Whether `batch` is for decoding alone, and no larger than can be."""
        attention = batch.attention
        few_rows = len(attention.context_lens) <= self.buckets[-1]
        is_short = attention.max_context_len <= self.max_context
        return attention.max_query_len == 1 and few_rows and is_short

    def pad(self, batch: Batch, rows: int) -> Batch:
        """`batch`, in the host's memory, with so many rows; every row has logits.

        Two of as many rows differ in the width of their block tables and the contents of their
        tensors, and in nothing else. Groups for which there is no room are left out.
        """
        attention, more = batch.attention, batch.more
        extra = rows - len(attention.context_lens)
        return Batch(
            token_ids=pad(batch.token_ids, (0, extra)),
            positions=pad(batch.positions, (0, extra)),
            logit_rows=torch.arange(rows),
            is_long=None if batch.is_long is None else pad(batch.is_long, (0, extra)),
            attention=replace(
                attention,
                block_tables=self._tables(attention.block_tables, rows),
                query_starts=torch.arange(rows + 1, dtype=torch.int32),
                context_lens=pad(attention.context_lens, (0, extra), value=1),
                slots=self._slots(attention.slots, rows),
                max_query_len=1,
                max_context_len=self.max_context,
                # One row alone shares its keys with nobody.
                groups=padded_groups(attention.groups, rows)
                if self.has_groups and rows > 1
                else None,
            ),
            more=None
            if more is None
            else MoreColumns(self._tables(more.block_tables, rows), self._slots(more.slots, rows)),
        )

    def _tables(self, tables: Tensor, rows: int) -> Tensor:
        """Of so many rows, [..., rows, max_blocks]."""
        count = tables.shape[-2]
        padded = pad(tables, (0, 0, 0, rows - count))
        padded[..., count:, 0] = self.null_page
        return padded

    def _slots(self, slots: Tensor, rows: int) -> Tensor:
        """Of as many tokens."""
        return pad(slots, (0, rows - slots.shape[-1]), value=self.null_page * self.block_size)

    def nothing(self, rows: int) -> Batch:
        """A batch of so many rows, in which every row is as those that are added."""
        pages = np.full((self.num_columns, 1), self.null_page)
        one = pack([([0], 0, 1, pages)], [0], self.block_size, torch.device("cpu"))
        is_long = torch.zeros(1, dtype=torch.bool) if self.has_lengths else None
        return self.pad(replace(one, is_long=is_long), rows)


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


def padded_groups(groups: PrefixGroups | None, rows: int) -> PrefixGroups:
    """A table as large as `rows` may need; added groups have no keys and no members.

    There is room for a group of every two rows, and every row in two of them.
    """
    num_groups, num_memberships = max(1, rows // 2), _MEMBERSHIPS_OF_A_ROW * rows
    if groups is None:
        none = torch.zeros(0, dtype=torch.int32)
        groups = PrefixGroups(none, none, torch.zeros(1, dtype=torch.int32), none, none, 0)
    groups = _cut(groups, num_groups, num_memberships)
    extra, num_members = num_groups - len(groups.begins), len(groups.members)
    return PrefixGroups(
        begins=pad(groups.begins, (0, extra)),
        ends=pad(groups.ends, (0, extra)),
        member_starts=pad(groups.member_starts, (0, extra), value=num_members),
        members=pad(groups.members, (0, num_memberships - num_members), value=_NOBODY),
        private_starts=pad(groups.private_starts, (0, rows - len(groups.private_starts))),
        max_members=rows,
    )


def _cut(groups: PrefixGroups, num_groups: int, num_memberships: int) -> PrefixGroups:
    """The first groups, as many as there is room for; whoever is in others has their keys alone.

    Inner groups come behind those that they are in, so none is left without them.
    """
    if len(groups.begins) <= num_groups and len(groups.members) <= num_memberships:
        return groups
    starts = groups.member_starts
    count = min(num_groups, int((starts[1:] <= num_memberships).sum()))
    members = groups.members[: int(starts[count])]
    private = torch.zeros_like(groups.private_starts)
    for group in range(count):
        private[members[starts[group] : starts[group + 1]].long()] = groups.ends[group]
    return PrefixGroups(
        groups.begins[:count],
        groups.ends[:count],
        starts[: count + 1],
        members,
        private,
        groups.max_members,
    )
