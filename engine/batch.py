"""One step's tensors: the chunks of a plan, packed without padding."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.plan import ScheduledChunk, StepPlan
from kernels.attention import AttentionBatch


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed tokens of one step, on the compute device."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    logit_rows: Tensor  # [num_logit_rows] int64, indices into the packed tokens
    attention: AttentionBatch


def pack_plan(plan: StepPlan, block_size: int, device: torch.device) -> Batch:
    """The batch of `plan`, with one logit row for each token that is drawn.

    Where the host does not know a token, it is 0.
    """
    chunks = plan.chunks
    ends = np.cumsum([chunk.count for chunk in chunks])
    rows = [int(end) - 1 for end, chunk in zip(ends, chunks, strict=True) for _ in chunk.samplers]
    parts = [(_token_ids(c), c.start, c.count, c.sequence.table.blocks) for c in chunks]
    return pack(parts, rows, block_size, device)


def pack(
    parts: Rows[tuple[Rows[int], int, int, Rows[int]]],
    logit_rows: Rows[int],
    block_size: int,
    device: torch.device,
) -> Batch:
    """Pack (token ids, start, count, blocks) of each sequence.

    Token p of a sequence has its KV in slot
    `blocks[p // block_size] * block_size + p % block_size`.
    """
    counts = np.array([count for _, _, count, _ in parts], dtype=np.int32)
    contexts = np.array([start + count for _, start, count, _ in parts], dtype=np.int32)
    used = -(-contexts // block_size)
    tables = np.zeros((len(parts), int(used.max())), dtype=np.int32)
    tokens: list[int] = []
    positions, slots = [], []
    for row, (ids, start, count, blocks) in enumerate(parts):
        tables[row, : used[row]] = blocks[: used[row]]
        tokens.extend(ids[start : start + count])
        position = np.arange(start, start + count)
        positions.append(position)
        slots.append(tables[row, position // block_size].astype(np.int64) * block_size)
        slots[-1] += position % block_size

    def tensor(array: object) -> Tensor:
        return torch.from_numpy(np.asarray(array)).to(device)

    return Batch(
        token_ids=tensor(np.array(tokens, dtype=np.int64)),
        positions=tensor(np.concatenate(positions)),
        logit_rows=tensor(np.array(logit_rows, dtype=np.int64)),
        attention=AttentionBatch(
            block_tables=tensor(tables),
            query_starts=tensor(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
            context_lens=tensor(contexts),
            slots=tensor(np.concatenate(slots)),
            max_query_len=int(counts.max()),
            max_context_len=int(contexts.max()),
        ),
    )


class _Unknown(list[int]):
    """Stands for the tokens of a sequence whose newest one the host does not know."""

    def __getitem__(self, _: object) -> list[int]:  # type: ignore[override]
        return [0]


def _token_ids(chunk: ScheduledChunk) -> Rows[int]:
    return _Unknown() if chunk.is_unknown else chunk.sequence.token_ids
