"""What kernels take together: tensors with the strides they are read by, and tables of a batch.

A named tuple reaches a kernel field by field, as if each were an argument: it costs nothing there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from kernels.types import AttentionBatch, PrefixGroups

Pointer = Any
"""A tensor on the host, and in a kernel a pointer to its first element."""


class Rows(NamedTuple):
    """Heads of packed tokens, [num_tokens, num_heads, head_dim]."""

    ptr: Pointer
    token_stride: int
    head_stride: int


class KvMemory(NamedTuple):
    """One layer's view of the KV memory: see `kernels.attention.write_kv`."""

    ptr: Pointer
    block_stride: int
    value_stride: int
    head_stride: int
    token_stride: int


class Sequences(NamedTuple):
    """Where the queries of each sequence are, and which keys it attends to alone."""

    query_starts_ptr: Pointer
    context_lens_ptr: Pointer
    private_starts_ptr: Pointer | None  # None: from key 0 on


class Groups(NamedTuple):
    """The table of `kernels.types.PrefixGroups`."""

    begins_ptr: Pointer
    ends_ptr: Pointer
    member_starts_ptr: Pointer
    members_ptr: Pointer


class Slots(NamedTuple):
    """Where partial results are: see `kernels.triton.work`."""

    outputs_ptr: Pointer  # [num_slots, rows, head_dim] fp32
    sums_ptr: Pointer  # [num_slots, rows] fp32: log2 of the sum of exponentials


class Rotation(NamedTuple):
    """Tables of angles, float32 [num_positions, rotary_dim / 2]."""

    cos_ptr: Pointer
    sin_ptr: Pointer
    stride: int


class HeadNorms(NamedTuple):
    """Weights [head_dim] of an RMSNorm of each head, or `None` without one."""

    query_weight_ptr: Pointer | None
    key_weight_ptr: Pointer | None
    eps: float


class StatePages(NamedTuple):
    """The states of a layer, by `kernels.types.StateRuns`; strides and offsets in elements."""

    ptr: Pointer
    page_stride: int
    columns_ptr: Pointer  # [num_units] int32: which of a run's pages each unit lies in
    offsets_ptr: Pointer  # [num_units] int32: and where it begins there
    starts_ptr: Pointer
    sources_ptr: Pointer
    targets_ptr: Pointer
    num_runs: int
    num_columns: int


def rows_of(tensor: Tensor) -> Rows:
    """`tensor` is [num_tokens, num_heads, head_dim], its heads in one piece."""
    return Rows(tensor, *tensor.stride()[:2])


def memory_of(kv: Tensor) -> KvMemory:
    """`kv` is as in `kernels.attention.write_kv`."""
    return KvMemory(kv, *kv.stride()[:4])


def sequences_of(batch: AttentionBatch, groups: PrefixGroups | None) -> Sequences:
    """All sequences of a batch, the runs of whose `groups` are attended to elsewhere."""
    private = None if groups is None else groups.private_starts
    return Sequences(batch.query_starts, batch.context_lens, private)


def table_of(groups: PrefixGroups) -> Groups:
    """All groups of a batch."""
    return Groups(groups.begins, groups.ends, groups.member_starts, groups.members)
