"""Runs the Triton kernels in Triton's interpreter and prints how far they are off, case by case.

`python -m tests.kernels.triton_cases` is a process of its own: the interpreter is chosen when
Triton is first imported, and a test run may have imported it already.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, fields

import torch

from kernels.attention import AttentionBatch, attend, write_kv


@dataclass(frozen=True)
class Case:
    """A batch of sequences, each (context length, queries), and the options of the model."""

    name: str
    seqs: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "float32"
    sliding_window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What was seen of a case; `error` is the largest absolute difference from the reference."""

    error: float
    memory_exact: bool  # the new tokens' slots hold their KV, all else is as it was


RAGGED_DECODE = ((1, 1), (16, 1), (37, 1))
RAGGED_PREFILL = ((5, 5), (16, 16), (33, 33))
MIXED = ((21, 1), (30, 7), (9, 9), (17, 1), (40, 2))

CASES = (
    Case("decode, ragged", RAGGED_DECODE),
    Case("decode, multi-head attention", RAGGED_DECODE, 3, 3),
    Case("decode, three heads a KV head", RAGGED_DECODE, 9, 3),
    Case("decode, multi-query attention", RAGGED_DECODE, 20, 1),
    Case("decode, head dim 80", RAGGED_DECODE, head_dim=80),
    Case("decode, head dim 96", RAGGED_DECODE, head_dim=96, dtype="float16"),
    Case("decode, head dim 128", RAGGED_DECODE, head_dim=128),
    Case("decode, head dim 256", RAGGED_DECODE, head_dim=256),
    Case("decode, blocks of 8", RAGGED_DECODE, block_size=8),
    Case("decode, blocks of 32", RAGGED_DECODE, block_size=32),
    Case("decode, blocks of 64", RAGGED_DECODE, block_size=64),
    Case("decode, fp16", RAGGED_DECODE, dtype="float16"),
    Case("decode, bf16", RAGGED_DECODE, dtype="bfloat16"),
    Case("decode, sliding window", ((3, 1), (37, 1), (90, 1)), sliding_window=20),
    Case("decode, softcap", RAGGED_DECODE, softcap=5.0),
    Case("decode, several splits", ((700, 1), (40, 1), (512, 1), (1100, 1)), 2, 1, block_size=64),
    Case("decode, window in the last split", ((40, 1), (1100, 1)), 2, 1, 64, 64, sliding_window=30),
    Case("decode, window over two splits", ((1100, 1),), 2, 1, 64, 64, sliding_window=200),
    Case("prefill, ragged", RAGGED_PREFILL),
    Case("prefill, multi-head attention", RAGGED_PREFILL, 3, 3),
    Case("prefill, three heads a KV head", RAGGED_PREFILL, 9, 3),
    Case("prefill, more heads than a tile has rows", ((5, 4),), 40, 1),
    Case("prefill, head dim 80", RAGGED_PREFILL, head_dim=80, dtype="float16"),
    Case("prefill, head dim 96", RAGGED_PREFILL, head_dim=96),
    Case("prefill, head dim 128", RAGGED_PREFILL, head_dim=128),
    Case("prefill, head dim 256", RAGGED_PREFILL, head_dim=256),
    Case("prefill, head dim 256, fp16", RAGGED_PREFILL, head_dim=256, dtype="float16"),
    Case("prefill, blocks of 8", RAGGED_PREFILL, block_size=8),
    Case("prefill, blocks of 32", RAGGED_PREFILL, block_size=32),
    Case("prefill, blocks of 64", RAGGED_PREFILL, block_size=64),
    Case("prefill, fp16", RAGGED_PREFILL, dtype="float16"),
    Case("prefill, bf16", RAGGED_PREFILL, dtype="bfloat16"),
    Case("prefill, sliding window", RAGGED_PREFILL, sliding_window=4),
    Case("prefill, softcap", RAGGED_PREFILL, softcap=5.0),
    Case("chunk with prefix", ((70, 20), (33, 17))),
    Case("chunk with prefix, sliding window", ((150, 40), (33, 17)), sliding_window=24),
    Case("chunk with prefix, softcap, fp16", ((70, 20),), softcap=8.0, dtype="float16"),
    Case("decode and chunks in one batch", MIXED),
    Case("decode and chunks in one batch, fp16", MIXED, 9, 3, dtype="float16"),
    Case("decode and chunks, every option", MIXED, 6, 2, 80, 8, "float16", 12, 6.0),
)


def run(case: Case) -> Outcome:
    """Write and attend in the second of three layers of a KV memory full of NaN."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    shape = (case.num_kv_heads, case.head_dim)
    batch, num_blocks = _batch(case)
    num_tokens = len(batch.slots)
    memory = torch.full(
        (num_blocks, 3, 2, case.num_kv_heads, case.block_size, case.head_dim), torch.nan
    ).to(dtype)
    kv = memory[:, 1]
    _fill_prefixes(kv, batch)
    # Views as a model hands them over: heads first, tokens second.
    key, value = torch.randn(2, shape[0], num_tokens, shape[1]).to(dtype).transpose(1, 2)
    query = torch.randn(case.num_heads, num_tokens, case.head_dim).to(dtype).transpose(0, 1)
    expected_memory = memory.clone()
    write_kv(key, value, expected_memory[:, 1], batch.slots, backend="reference")
    write_kv(key, value, kv, batch.slots, backend="triton")
    options = {
        "scale": case.head_dim**-0.5,
        "sliding_window": case.sliding_window,
        "softcap": case.softcap,
    }
    expected = attend(query.double(), kv.double(), batch, **options, backend="reference")
    actual = attend(query, kv, batch, **options, backend="triton")
    return Outcome(
        error=(actual.double() - expected).abs().max().item(),
        memory_exact=_same(memory, expected_memory),
    )


def _batch(case: Case) -> tuple[AttentionBatch, int]:
    """Shuffled block tables over a memory with blocks to spare."""
    contexts = [context for context, _ in case.seqs]
    counts = [count for _, count in case.seqs]
    used = [-(-context // case.block_size) for context in contexts]
    num_blocks = sum(used) + 3
    free = torch.randperm(num_blocks, dtype=torch.int32).tolist()
    tables = torch.zeros(len(used), max(used), dtype=torch.int32)
    slots = []
    for row, (context, count) in enumerate(case.seqs):
        blocks = [free.pop() for _ in range(used[row])]
        tables[row, : used[row]] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(context - count, context):
            block = blocks[position // case.block_size]
            slots.append(block * case.block_size + position % case.block_size)
    batch = AttentionBatch(
        block_tables=tables,
        query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        slots=torch.tensor(slots),
        max_query_len=max(counts),
        max_context_len=max(contexts),
    )
    return batch, num_blocks


def _fill_prefixes(kv: torch.Tensor, batch: AttentionBatch) -> None:
    """Random KV where earlier steps have written; everything else stays NaN."""
    block_size = kv.shape[3]
    query_lens = batch.query_starts.diff()
    for row, prefix_len in enumerate((batch.context_lens - query_lens).tolist()):
        for position in range(prefix_len):
            block = batch.block_tables[row, position // block_size]
            slot = kv[block, :, :, position % block_size]
            slot.copy_(torch.randn(slot.shape))


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.nan_to_num(nan=12345.0), right.nan_to_num(nan=12345.0))


def main() -> None:
    """One JSON line a case."""
    wanted = set(sys.argv[1:])
    for case in CASES:
        if not wanted or case.name in wanted:
            outcome = run(case)
            values = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
            print(json.dumps({"name": case.name} | values), flush=True)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills what `torch.empty` returns with NaN
    main()
