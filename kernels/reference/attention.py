"""Paged attention in plain torch, over blocks gathered for one sequence after the other.

It serves where no compiled kernel runs, right and slower. It computes in float32, or in float64 for
queries of float64: so it is what the other rooms are measured against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.kv_format import dequantize, is_quantized, quantize
from kernels.types import AttentionBatch, AttentionShape

_MOST_SCORES = 1 << 24
"""Scores that exist at a time: 64 MiB of float32."""


def prepare(shape: AttentionShape) -> None:
    """See `kernels.attention.prepare`; nothing here needs compiling."""


def write_kv(key: Tensor, value: Tensor, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    blocks, offsets = slots // kv.shape[3], slots % kv.shape[3]
    for side, rows in enumerate((key, value)):
        kv[blocks, side, :, offsets] = quantize(rows, kv.dtype) if is_quantized(kv.dtype) else rows


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    output: Tensor | None = None,
) -> Tensor:
    """See `kernels.attention.attend`. Groups are left aside: they change no result.

    What a sequence gets depends on its own queries and keys alone.
    """
    if output is None:
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    starts = batch.query_starts.tolist()
    for seq, context_len in enumerate(batch.context_lens.tolist()):
        first, last = starts[seq : seq + 2]
        row = first
        while row < last:
            count = max(1, min(last - row, _MOST_SCORES // (query.shape[1] * context_len)))
            end = context_len - last + row + count  # behind the last key that the last row sees
            begin = max(0, end - count + 1 - sliding_window) if sliding_window else 0
            keys, values = gather(kv, batch.block_tables[seq], begin, end)
            rows = slice(row, row + count)
            output[rows] = _attend(query[rows], keys, values, scale, sliding_window, softcap)
            row += count
    return output


def gather(kv: Tensor, block_table: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """A sequence's keys and values from `begin` to `end`, copied out.

    Both are [num_kv_heads, end - begin, head_dim].
    """
    block_size = kv.shape[3]
    first = begin // block_size
    blocks = kv.index_select(0, block_table[first : -(-end // block_size)])
    both = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)
    both = both[:, :, begin - first * block_size : end - first * block_size]
    if is_quantized(kv.dtype):
        both = dequantize(both)
    return both[0], both[1]


def _attend(
    query: Tensor,  # [rows, num_heads, head_dim]; the last row sees the last key
    keys: Tensor,  # [num_kv_heads, num_keys, head_dim]
    values: Tensor,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    num_rows, (num_kv_heads, num_keys, _) = len(query), keys.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    shape = (num_kv_heads, -1, num_rows, query.shape[2])
    # The heads that share keys are rows of one product.
    stacked = query.to(wide).transpose(0, 1).reshape(num_kv_heads, -1, query.shape[2])
    scores = stacked @ keys.to(wide).mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = ~_visible(num_rows, num_keys, sliding_window, query.device)
    scores = scores.view(*shape[:3], num_keys).masked_fill_(hidden, float("-inf"))
    attended = scores.softmax(dim=-1).flatten(1, 2) @ values.to(wide)
    return attended.view(shape).flatten(0, 1).transpose(0, 1).to(query.dtype)


def _visible(
    num_rows: int, num_keys: int, sliding_window: int | None, device: torch.device
) -> Tensor:
    """[num_rows, num_keys] bool; the last row sees the last key."""
    last = num_keys - num_rows  # the last key that row 0 sees
    visible = torch.ones(num_rows, num_keys, dtype=torch.bool, device=device).tril_(last)
    return visible if sliding_window is None else visible.triu_(last - sliding_window + 1)
