"""Paged batches of random keys and values, and how far an attention kernel is off on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kernels.attention import attend
from kernels.kv_format import KvDtype, quantize, row_size, storage_dtype
from kernels.types import AttentionBatch, Chunk, PrefixGroups

BLOCK_SIZE = 16
_FILLED_AT_ONCE = 1024
_CHECKED_SEQS, _CHECKED_QUERIES = 4, 64


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of attention; Llama-3-8B's by default."""

    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16

    def bytes_of(self, keys: int) -> int:
        """Bytes of that many keys with their values, unquantized."""
        return 2 * keys * self.num_kv_heads * self.head_dim * self.dtype.itemsize


LLAMA_3_8B = Heads()


@dataclass(frozen=True, slots=True)
class Paged:
    """A batch with its queries and the memory that it attends to."""

    query: Tensor
    kv: Tensor
    batch: AttentionBatch

    def attend(self) -> Tensor:
        """The kernels under test."""
        scale = self.query.shape[-1] ** -0.5
        return attend(self.query, self.kv, self.batch, scale=scale, backend="triton")

    def without_groups(self) -> Paged:
        """The same, every sequence for itself."""
        return replace(self, batch=replace(self.batch, groups=None))

    def in_order(self) -> Paged:
        """The same work on blocks that lie one behind the other, as a contiguous cache has them."""
        tables = self.batch.block_tables
        ordered = torch.arange(tables.numel(), dtype=tables.dtype, device=tables.device)
        return replace(self, batch=replace(self.batch, block_tables=ordered.view(tables.shape)))

    def error(self) -> float:
        """The largest difference from the fp64 reference in the last queries of the batch.

        The queries are drawn anew, and all memory that the kernels allocate holds NaN first.
        """
        self.query.normal_()
        torch.use_deterministic_algorithms(True, warn_only=True)  # poisons what is not written
        try:
            actual = self.attend()
        finally:
            torch.use_deterministic_algorithms(False)
        few = _last_of_sequence(self) if self.batch.max_query_len > 1 else _last_sequences(self)
        scale = self.query.shape[-1] ** -0.5
        expected = attend(few.query.double(), few.kv, few.batch, scale=scale, backend="reference")
        difference = actual[-len(few.query) :].double() - expected
        # NaN, which compares with nothing, must not pass for small.
        return difference.abs().nan_to_num(nan=float("inf")).max().item()


def paged(
    seqs: Sequence[tuple[int, int]],  # (context length, queries)
    heads: Heads,
    device: torch.device,
    kv_dtype: KvDtype = "auto",
) -> Paged:
    """Sequences of random keys in shuffled blocks; all contexts take equally many blocks."""
    contexts, counts = zip(*seqs, strict=True)
    per_seq = -(-max(contexts) // BLOCK_SIZE)
    num_blocks = per_seq * len(seqs)
    starts = accumulate(counts, initial=0)
    every = map(Chunk, range(len(seqs)), starts, counts, contexts)
    tables = torch.randperm(num_blocks, device=device).int().view(len(seqs), per_seq)
    return Paged(
        torch.randn(sum(counts), heads.num_heads, heads.head_dim, device=device).to(heads.dtype),
        _filled(num_blocks, heads, device, kv_dtype),
        AttentionBatch(
            block_tables=tables,
            query_starts=torch.tensor([0, *counts], device=device).cumsum(0).int(),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            slots=torch.zeros(sum(counts), dtype=torch.int64, device=device),
            max_query_len=max(counts),
            max_context_len=max(contexts),
            chunks=tuple(chunk for chunk in every if chunk.num_queries > 1),
        ),
    )


def tenants(
    num_tenants: int, prefix: int, members: int, own: int, heads: Heads, device: torch.device
) -> Paged:
    """Tenants whose sequences share a prefix, and go on for `own` keys by themselves."""
    num_seqs = num_tenants * members
    example = paged([(prefix + own, 1)] * num_seqs, heads, device)
    tables, shared = example.batch.block_tables, prefix // BLOCK_SIZE
    first = torch.arange(num_seqs, device=device) // members * members
    tables[:, :shared] = tables[first, :shared]

    def tensor(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    groups = PrefixGroups(
        begins=tensor([0] * num_tenants),
        ends=tensor([prefix] * num_tenants),
        member_starts=tensor(range(0, num_seqs + 1, members)),
        members=tensor(range(num_seqs)),
        private_starts=tensor([prefix] * num_seqs),
        max_members=members,
    )
    return replace(example, batch=replace(example.batch, groups=groups))


def _filled(num_blocks: int, heads: Heads, device: torch.device, kv_dtype: KvDtype) -> Tensor:
    storage = storage_dtype(kv_dtype, heads.dtype)
    row = row_size(heads.head_dim, storage)
    shape = (num_blocks, 2, heads.num_kv_heads, BLOCK_SIZE, row)
    kv = torch.empty(shape, dtype=storage, device=device)
    if storage == heads.dtype:
        return kv.normal_()
    for start in range(0, num_blocks, _FILLED_AT_ONCE):
        part = kv[start : start + _FILLED_AT_ONCE]
        part.copy_(quantize(torch.randn(*part.shape[:-1], heads.head_dim, device=device), storage))
    return kv


def _last_sequences(example: Paged) -> Paged:
    """The last sequences of a batch of decode, for themselves."""
    batch = example.batch
    count = min(_CHECKED_SEQS, len(batch.context_lens))
    return Paged(
        example.query[-count:],
        example.kv,
        replace(
            batch,
            block_tables=batch.block_tables[-count:],
            query_starts=batch.query_starts[: count + 1],
            context_lens=batch.context_lens[-count:],
            groups=None,
        ),
    )


def _last_of_sequence(example: Paged) -> Paged:
    """The last queries of the last sequence: what all of its keys go into."""
    batch = example.batch
    count = min(_CHECKED_QUERIES, int(batch.query_starts[-1] - batch.query_starts[-2]))
    return Paged(
        example.query[-count:],
        example.kv,
        replace(
            batch,
            block_tables=batch.block_tables[-1:],
            query_starts=torch.tensor([0, count], dtype=torch.int32, device=example.kv.device),
            context_lens=batch.context_lens[-1:],
            max_query_len=count,
            chunks=None,
        ),
    )
