"""Runs the Triton kernels and prints how far they are off, case by case.

`python -m tests.kernels.triton.cases cpu` runs them in Triton's interpreter, with `cuda` they are
compiled. It is a process of its own: the interpreter is chosen when Triton is first imported, and a
test run may have imported it already.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from engine.run.graphs.padding import tensors_of, with_tensors
from kernels.attention import attend, write_kv
from kernels.kv_format import KvDtype, row_size, storage_dtype
from kernels.types import AttentionBatch, PrefixGroups
from tests.kernels.triton.interpreter import interpret


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
    value_dim: int | None = None  # of latents, of 1 KV head
    kv_dtype: KvDtype = "auto"
    batch_invariant: bool = False
    chunk: int | None = None
    with_sinks: bool = False
    groups: tuple[tuple[int, int, tuple[int, ...]], ...] = ()  # blocks begin .. end, and members


@dataclass(frozen=True)
class Outcome:
    """What was seen of a case; `error` is the largest absolute difference from the reference."""

    error: float
    memory_exact: bool  # the new tokens' slots hold their KV, all else is as it was
    same_alone: bool | None  # whether the last sequence gets the same bits without the others
    launches: list[str]  # the kernels of one call of `attend`


RAGGED_DECODE = ((1, 1), (16, 1), (37, 1))
RAGGED_PREFILL = ((5, 5), (16, 16), (33, 33))
MIXED = ((21, 1), (30, 7), (9, 9), (17, 1), (40, 2))
LONG = ((700, 1), (40, 1), (512, 1), (1100, 1))
LONG_CHUNK = ((1100, 1), (40, 9), (1030, 21))
BEHIND_MUCH = ((1500, 4),)
TENANTS = ((90, 1), (65, 1), (100, 1), (20, 5), (64, 1), (70, 1), (40, 1))
INVARIANT: dict[str, Any] = {"batch_invariant": True}
SINKS: dict[str, Any] = {"with_sinks": True}
NESTED = ((0, 2, (0, 1, 2, 4)), (2, 4, (0, 1, 4)), (0, 3, (5,)), (4, 5, (0,)))

CASES = (
    Case("decode, ragged", RAGGED_DECODE),
    Case("decode, multi-query attention", ((37, 1),), 20, 1),
    Case("decode, head dim 80, blocks of 8", RAGGED_DECODE, head_dim=80, block_size=8),
    Case("decode, head dim 256", RAGGED_DECODE, head_dim=256),
    Case("decode, bf16", RAGGED_DECODE, dtype="bfloat16"),
    Case("decode, sliding window", ((3, 1), (37, 1), (90, 1)), sliding_window=20),
    Case("decode, several splits", LONG, 2, 1, block_size=64),
    Case("decode, batch-invariant", LONG, 2, 1, block_size=64, batch_invariant=True),
    Case("decode, fp8", RAGGED_DECODE, kv_dtype="fp8", dtype="bfloat16"),
    Case("nested groups", TENANTS, groups=NESTED),
    Case("groups, three heads a KV head, bf16", TENANTS, 9, 3, dtype="bfloat16", groups=NESTED),
    Case("groups of several tiles", ((40, 1),) * 3, 40, 1, groups=((0, 2, (0, 1, 2)),)),
    Case("groups, fp8 and softcap", TENANTS, softcap=5.0, kv_dtype="fp8", groups=NESTED),
    Case("groups, int8, fp16", TENANTS, dtype="float16", kv_dtype="int8", groups=NESTED),
    Case("groups in a layer with a window", TENANTS, sliding_window=20, groups=NESTED),
    Case("decode, window over two splits", ((1100, 1),), 2, 1, 64, 64, sliding_window=200),
    Case("prefill, ragged", RAGGED_PREFILL),
    Case("prefill, three heads a KV head", RAGGED_PREFILL, 9, 3),
    Case("prefill, more heads than a tile has rows", ((5, 4),), 40, 1),
    Case("prefill, head dim 80", RAGGED_PREFILL, head_dim=80, dtype="float16"),
    Case("prefill, head dim 256, fp16", RAGGED_PREFILL, head_dim=256, dtype="float16"),
    Case("prefill, fp16", RAGGED_PREFILL, dtype="float16"),
    Case("prefill, bf16", RAGGED_PREFILL, dtype="bfloat16"),
    Case("prefill, fp8, fp16", RAGGED_PREFILL, dtype="float16", kv_dtype="fp8"),
    Case("chunk with prefix", ((70, 20), (33, 17))),
    Case("chunk with a window of several tiles", ((150, 9),), sliding_window=90),
    Case("chunk with prefix, sliding window", ((150, 40), (33, 17)), sliding_window=24),
    Case("chunk with prefix, softcap, fp16", ((70, 20),), softcap=8.0, dtype="float16"),
    Case("chunk split over keys", BEHIND_MUCH, 3, 1),
    Case("chunk split over keys, sliding window", ((1800, 9),), 2, 1, sliding_window=1300),
    Case("chunk split over keys, fp16, softcap", BEHIND_MUCH, 6, 1, dtype="float16", softcap=8.0),
    Case("one chunk split and one whole", ((1500, 4), (30, 1), (20, 20)), 2, 1, block_size=64),
    Case("chunks, batch-invariant", (*LONG[:2], (90, 90), (1030, 21)), 2, 1, batch_invariant=True),
    Case("latents, decode and chunks", MIXED, 4, 1, 40, value_dim=32),
    Case("latents, more heads than a tile has", ((20, 1), (9, 3)), 40, 1, 40, value_dim=32),
    Case("latents of 512 and 64", ((130, 1), (9, 3)), 20, 1, 576, value_dim=512, dtype="float16"),
    Case("latents, groups, fp8", TENANTS, 4, 1, 48, value_dim=32, kv_dtype="fp8", groups=NESTED),
    Case("latents, chunk split over keys", BEHIND_MUCH, 4, 1, 24, value_dim=20),
    Case("latents, several splits", LONG, 2, 1, 24, block_size=64, value_dim=16),
    Case("latents, sinks and a window", MIXED, 4, 1, 40, value_dim=32, sliding_window=7, **SINKS),
    Case("latents, sinks, groups", TENANTS, 40, 1, 40, value_dim=32, groups=NESTED, **SINKS),
    Case("latents, every option", MIXED, 6, 1, 40, 8, "float16", 12, 6.0, 32, chunk=15, **SINKS),
    Case("latents, invariant", LONG_CHUNK, 2, 1, 24, 64, value_dim=16, **INVARIANT, **SINKS),
    Case("decode and chunks in one batch", MIXED),
    Case("decode and chunks, every option", MIXED, 6, 2, 80, 8, "float16", 12, 6.0),
    Case("sinks, decode and chunks", MIXED, 6, 2, with_sinks=True),
    Case("sinks, decode, several splits", LONG, 3, 1, block_size=64, with_sinks=True),
    Case("sinks, decode, batch-invariant", LONG[:3], 2, 1, 64, 64, **INVARIANT, with_sinks=True),
    Case("sinks, nested groups", TENANTS, 9, 3, groups=NESTED, with_sinks=True),
    Case("sinks, chunk split over keys", BEHIND_MUCH, 3, 1, with_sinks=True),
    Case("sinks and windows, bf16", MIXED, dtype="bfloat16", sliding_window=7, with_sinks=True),
    Case("local chunks, decode", ((3, 1), (37, 1), (96, 1), (97, 1)), chunk=32),
    Case("local chunks, prefill", ((150, 40), (33, 33), (200, 3), (90, 90)), chunk=48),
    Case("local chunks of several tiles", ((500, 70), (400, 1)), 3, 1, chunk=300),
    Case("local chunks split over keys", ((1790, 9),), 2, 1, chunk=1785),
    Case("local chunks beside groups", TENANTS, chunk=30, groups=NESTED, with_sinks=True),
    Case("every option", MIXED, 6, 2, 80, 8, "float16", 12, 6.0, chunk=15, with_sinks=True),
    Case("local, batch-invariant", LONG_CHUNK, 2, 1, chunk=700, **INVARIANT),
)


def run(case: Case, device: torch.device, launches: list[str]) -> Outcome:
    """Write and attend in the second of three layers of a KV memory full of NaN.

    Inputs and what is expected are computed on a CPU, the same for every device. `launches` is
    where kernels are listed as they are launched.
    """
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    shape = (case.num_kv_heads, case.head_dim)
    batch, num_blocks = _batch(case)
    num_tokens = len(batch.slots)
    storage = storage_dtype(case.kv_dtype, dtype)
    row = row_size(case.head_dim, storage)
    # 127: NaN in fp8, and as a scale larger than anything.
    unwritten = torch.tensor(127 if storage != dtype else torch.nan).to(storage)
    sides = 2 if case.value_dim is None else 1
    memory = unwritten.repeat(num_blocks, 3, sides, case.num_kv_heads, case.block_size, row)
    kv = memory[:, 1]
    _fill_prefixes(kv, batch, case.head_dim, dtype)
    _forget(kv, batch, unwritten, _first_seen(case))
    # Views as a model hands them over: heads first, tokens second.
    key, value = _sides(
        torch.randn(2, shape[0], num_tokens, shape[1]).to(dtype).transpose(1, 2), kv
    )
    query = torch.randn(case.num_heads, num_tokens, case.head_dim).to(dtype).transpose(0, 1)
    expected_memory = memory.clone()
    write_kv(key, value, expected_memory[:, 1], batch.slots, backend="reference")
    on_device = with_tensors(batch, [tensor.to(device) for tensor in tensors_of(batch)])
    written = memory.to(device)
    there = written[:, 1]
    slots = on_device.slots
    value = None if value is None else value.to(device)
    write_kv(key.to(device), value, there, slots, backend="triton")
    options: dict[str, Any] = {
        "scale": case.head_dim**-0.5,
        "sliding_window": case.sliding_window,
        "softcap": case.softcap,
        "chunk": case.chunk,
        "value_dim": case.value_dim,
    }
    sinks = torch.randn(case.num_heads) * 4 if case.with_sinks else None
    whole = replace(batch, groups=None)
    stored = expected_memory[:, 1]
    wide = query.double()
    expected = attend(wide, stored, whole, **options, sinks=sinks, backend="reference")
    query = query.to(device)
    options["sinks"] = None if sinks is None else sinks.to(device)
    launches.clear()
    actual = attend(query, there, on_device, **options, backend="triton")
    launched = launches.copy()
    same_alone = None
    if case.batch_invariant:
        count = case.seqs[-1][1]
        last = _last(on_device, count)
        alone = attend(query[-count:], there, last, **options, backend="triton")
        same_alone = torch.equal(alone, actual[-count:])
    return Outcome(
        error=(actual.cpu().double() - expected).abs().max().item(),
        memory_exact=_same(written.cpu(), expected_memory, case.head_dim),
        same_alone=same_alone,
        launches=launched,
    )


def _last(batch: AttentionBatch, count: int) -> AttentionBatch:
    """The last sequence of a batch, which has `count` queries, for itself."""
    return replace(
        batch,
        block_tables=batch.block_tables[-1:],
        query_starts=torch.tensor([0, count], dtype=torch.int32, device=batch.slots.device),
        context_lens=batch.context_lens[-1:],
        max_query_len=count,
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
    shared = {
        (row, block): (members[0], block)
        for begin, end, members in case.groups
        for row in members[1:]
        for block in range(begin, end)
    }
    taken: dict[tuple[int, int], int] = {}
    for row, (context, count) in enumerate(case.seqs):
        for block in range(used[row]):
            if (row, block) not in shared:
                taken[row, block] = free.pop()
        blocks = [taken[shared.get((row, block), (row, block))] for block in range(used[row])]
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
        groups=_groups(case) if case.groups else None,
        batch_invariant=case.batch_invariant,
    )
    return batch, num_blocks


def _groups(case: Case) -> PrefixGroups:
    """The case's groups, with room to spare as captured graphs have it: groups without a run."""
    members = [row for _, _, group in case.groups for row in group]
    starts = [
        sum(len(group) for _, _, group in case.groups[:g]) for g in range(len(case.groups) + 1)
    ]
    private = [0] * len(case.seqs)
    for _, end, group in case.groups:
        for row in group:
            private[row] = end * case.block_size

    def tensor(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return PrefixGroups(
        begins=tensor([begin * case.block_size for begin, _, _ in case.groups] + [0, 16]),
        ends=tensor([end * case.block_size for _, end, _ in case.groups] + [0, 16]),
        member_starts=tensor([*starts, len(members), len(members) + 2]),
        members=tensor([*members, 0, 0, 0]),
        private_starts=tensor(private),
        max_members=max(len(group) for _, _, group in case.groups),
    )


def _fill_prefixes(
    kv: torch.Tensor, batch: AttentionBatch, head_dim: int, dtype: torch.dtype
) -> None:
    """Random KV where earlier steps have written; everything else stays NaN."""
    block_size = kv.shape[3]
    query_lens = batch.query_starts.diff()
    for row, prefix_len in enumerate((batch.context_lens - query_lens).tolist()):
        positions = torch.arange(prefix_len)
        slots = batch.block_tables[row, positions // block_size] * block_size
        key, value = _sides(torch.randn(2, prefix_len, kv.shape[2], head_dim).to(dtype), kv)
        write_kv(key, value, kv, slots + positions % block_size, backend="reference")


def _first_seen(case: Case) -> list[int]:
    """Of each sequence, the first key that its queries see."""
    firsts = []
    for context, count in case.seqs:
        position = context - count
        oldest = position - case.sliding_window + 1 if case.sliding_window else 0
        firsts.append(max(0, oldest, position // case.chunk * case.chunk if case.chunk else 0))
    return firsts


def _forget(
    kv: torch.Tensor, batch: AttentionBatch, unwritten: torch.Tensor, first_seen: list[int]
) -> None:
    """Take back the blocks that no query sees, unless a group has them for others."""
    if batch.groups is None:
        for table, first in zip(batch.block_tables, first_seen, strict=True):
            kv[table[: first // kv.shape[3]].long()] = unwritten


def _sides(both: torch.Tensor, kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Keys and values, or keys alone for latents."""
    return both[0], both[1] if kv.shape[1] == 2 else None


def _same(left: torch.Tensor, right: torch.Tensor, head_dim: int) -> bool:
    if not left.is_floating_point():  # quantized: nothing reads what pads the scale
        return torch.equal(left[..., : head_dim + 4], right[..., : head_dim + 4])
    return torch.equal(left.nan_to_num(nan=12345.0), right.nan_to_num(nan=12345.0))


def _listed_launches() -> list[str]:
    """A list that names every attention kernel from now on when it is launched."""
    from kernels.triton import decode, grouped, prefill

    launches: list[str] = []
    for kernel in (
        decode.attend_own,
        grouped.attend_shared,
        prefill.attend_chunk,
        prefill.merge_chunk,
    ):
        name = kernel.__name__
        kernel.add_pre_run_hook(lambda *_, name=name, **__: launches.append(name))
    return launches


def main(device: torch.device) -> None:
    """One JSON line a case, and one with the errors of a layer's other kernels."""
    from tests.kernels.triton.layer_cases import layer_errors  # imports Triton

    print(json.dumps({"name": "layers", "errors": layer_errors(device)}), flush=True)
    launches = _listed_launches()
    for case in CASES:
        print(json.dumps({"name": case.name} | asdict(run(case, device, launches))), flush=True)


if __name__ == "__main__":
    where = torch.device(sys.argv[1])
    if where.type == "cpu":
        interpret()
    torch.set_num_threads(1)
    # Fills what `torch.empty` returns with NaN; on a GPU there is not always a deterministic way.
    torch.use_deterministic_algorithms(True, warn_only=True)
    main(where)
