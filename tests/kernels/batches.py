"""Random paged batches for the tests: shuffled blocks, and NaN in every slot nobody may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.kv_format import quantize
from kernels.prefix_groups import GroupFinder, GroupingRule
from kernels.types import AttentionBatch

EVERY_RUN = GroupingRule()


def drawn_sinks(num_heads: int) -> Tensor:
    """Of every size: some outweigh all keys, others none."""
    return torch.randn(num_heads, generator=torch.Generator().manual_seed(num_heads)) * 4


@dataclass(frozen=True)
class Paged:
    """One layer of a three-layer KV memory with the batch that reads it."""

    query: Tensor  # [num_tokens, num_heads, head_dim], strided as models hand it over
    kv: Tensor
    batch: AttentionBatch

    def grouped(self, rule: GroupingRule = EVERY_RUN) -> Paged:
        """The same batch with the groups that `rule` lets it have."""
        batch = self.batch
        groups = GroupFinder(self.kv.shape[3], rule).find(
            batch.block_tables.numpy(),
            batch.query_starts.diff().numpy(),
            batch.context_lens.numpy(),
        )
        assert groups is not None, "nothing is shared"
        return replace(self, batch=replace(batch, groups=groups.to(batch.slots.device)))

    def quantized(self) -> Paged:
        """The same batch over codes of 8 bits, whose scale is NaN in every slot nobody may read."""
        rows = quantize(self.kv, torch.int8)
        return replace(self, kv=torch.stack([torch.zeros_like(rows), rows], dim=1)[:, 1])

    def poisoned(self, seq: int, first_seen: int) -> Paged:
        """The same with NaN in all blocks of a sequence in front of a key's."""
        kv = self.kv.clone()
        blocks = self.batch.block_tables[seq, : first_seen // kv.shape[3]].long()
        kv[blocks] = torch.nan
        return replace(self, kv=kv)

    def latents(self) -> Paged:
        """The same batch over its keys alone, of which each is a value as well."""
        return replace(self, kv=self.kv[:, :1])

    def only(self, seq: int) -> Paged:
        """The same memory with one sequence of the batch."""
        start, end = self.batch.query_starts[seq : seq + 2].tolist()
        context_len = self.batch.context_lens[seq : seq + 1]
        batch = AttentionBatch(
            block_tables=self.batch.block_tables[seq : seq + 1],
            query_starts=torch.tensor([0, end - start], dtype=torch.int32),
            context_lens=context_len,
            slots=self.batch.slots[start:end],
            max_query_len=end - start,
            max_context_len=int(context_len),
        )
        return Paged(self.query[start:end], self.kv, batch)


def paged(
    seqs: Sequence[tuple[int, int]],  # (context length, queries)
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    forks: Mapping[int, tuple[int, int]] | None = None,
) -> Paged:
    """All KV of the sequences is written; every other slot holds NaN.

    `forks` says which sequences start with the first blocks of an earlier one, and how many.
    """
    forks = forks or {}
    random = torch.Generator().manual_seed(seed)
    contexts, counts = zip(*seqs, strict=True)
    used = [-(-context // block_size) for context in contexts]
    num_blocks = sum(used) + 2
    order = torch.randperm(num_blocks, generator=random).int()
    tables = torch.zeros(len(seqs), max(used) + 1, dtype=torch.int32)
    memory = torch.full((num_blocks, 3, 2, num_kv_heads, block_size, head_dim), torch.nan)
    memory = memory.to(dtype)
    kv = memory[:, 1]
    slots = []
    for seq, (context, count) in enumerate(seqs):
        source, shared = forks.get(seq, (0, 0))
        own, order = order[: used[seq] - shared], order[used[seq] - shared :]
        blocks = torch.cat([tables[source, :shared], own])
        tables[seq, : used[seq]] = blocks
        position = torch.arange(context)
        block, offset = blocks[position // block_size].long(), position % block_size
        both = torch.randn(context, 2, num_kv_heads, head_dim, generator=random).to(dtype)
        new = shared * block_size
        kv[block[new:], :, :, offset[new:]] = both[new:]
        slots.append((block * block_size + offset)[context - count :])
    num_tokens = sum(counts)
    query = torch.randn(num_heads, num_tokens, head_dim, generator=random).to(dtype)
    batch = AttentionBatch(
        block_tables=tables,
        query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        slots=torch.cat(slots),
        max_query_len=max(counts),
        max_context_len=max(contexts),
    )
    return Paged(query.transpose(0, 1), kv, batch)
