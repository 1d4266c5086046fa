"""Paged attention in plain torch, over blocks gathered for one sequence after the other.

It serves where no compiled kernel runs, right and slower. It computes in float32, or in float64 for
queries of float64: so it is what the other rooms are measured against.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.kv_format import dequantize, is_quantized, quantize
from kernels.types import AttentionBatch, AttentionShape

_MOST_SCORES = 1 << 24
"""Scores that exist at a time: 64 MiB of float32."""


def prepare(shape: AttentionShape) -> None:
    """See `kernels.attention.prepare`; nothing here needs compiling."""


def write_kv(key: Tensor, value: Tensor | None, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    blocks, offsets = slots // kv.shape[3], slots % kv.shape[3]
    for side, rows in enumerate((key,) if value is None else (key, value)):
        kv[blocks, side, :, offsets] = quantize(rows, kv.dtype) if is_quantized(kv.dtype) else rows


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """See `kernels.attention.attend`. Groups are left aside: they change no result.

    What a sequence gets depends on its own queries and keys alone.
    """
    if output is None:
        shape = (*query.shape[:2], value_dim or query.shape[2])
        output = torch.empty(shape, dtype=query.dtype, device=query.device)
    starts = batch.query_starts.tolist()
    for seq, context_len in enumerate(batch.context_lens.tolist()):
        first, last = starts[seq : seq + 2]
        row = first
        while row < last:
            count = max(1, min(last - row, _MOST_SCORES // (query.shape[1] * context_len)))
            end = context_len - last + row + count  # behind the last key that the last row sees
            begin = _first_seen(end - count, sliding_window, chunk)
            keys, values = gather(kv, batch.block_tables[seq], begin, end)
            values, rows = values[..., :value_dim], slice(row, row + count)
            visible = _visible(begin, end, count, sliding_window, chunk).to(kv.device)
            output[rows] = _attend(query[rows], keys, values, visible, scale, softcap, sinks)
            row += count
    return output


def attend_mutually(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None,
    sinks: Tensor | None,
    value_dim: int | None,
    output: Tensor,
) -> None:
    """Attention of the queries that `batch.mutual` tells of, which it puts into `output`: they see
    all keys before the end of theirs that a window, or a chunk, lets them see.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    for one in batch.mutual:
        begin = _first_seen(one.position, sliding_window, chunk)
        found = gather(kv, batch.block_tables[one.row], begin, one.end)
        keys, values = (tensor.to(wide) for tensor in found)  # once for all parts
        others, seen = torch.arange(begin, one.end), values[..., :value_dim]
        most = max(1, _MOST_SCORES // (query.shape[1] * len(others)))
        for own in torch.split(torch.arange(one.num_queries), most):
            positions = one.position + own[:, None]
            visible = torch.ones(len(own), len(others), dtype=torch.bool)
            if sliding_window is not None:
                visible &= positions - others < sliding_window
            if chunk is not None:
                visible &= positions // chunk == others // chunk
            first = one.first_token + int(own[0])
            rows = slice(first, first + len(own))
            output[rows] = _attend(
                query[rows], keys, seen, visible.to(kv.device), scale, softcap, sinks
            )


def attend_in_parts(
    query: Tensor, key: Tensor, value: Tensor, most: int, scale: float
) -> Iterator[Tensor]:
    """See `kernels.attention.attend_in_parts`."""
    keys, values = (tensor.transpose(0, 1)[None] for tensor in (key, value))
    has_groups = query.shape[1] != key.shape[1]
    for rows in torch.split(query, most):
        found = scaled_dot_product_attention(
            rows.transpose(0, 1)[None], keys, values, scale=scale, enable_gqa=has_groups
        )
        yield found[0].transpose(0, 1)


def gather(kv: Tensor, block_table: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """A sequence's keys and values from `begin` to `end`, copied out.

    Both are [num_kv_heads, end - begin, head_dim], and the same where each is both.
    """
    block_size = kv.shape[3]
    first = begin // block_size
    blocks = kv.index_select(0, block_table[first : -(-end // block_size)])
    both = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)
    both = both[:, :, begin - first * block_size : end - first * block_size]
    if is_quantized(kv.dtype):
        both = dequantize(both)
    return both[0], both[-1]


def _attend(
    query: Tensor,  # [rows, num_heads, head_dim]
    keys: Tensor,  # [num_kv_heads, num_keys, head_dim]
    values: Tensor,  # [num_kv_heads, num_keys, value_dim]
    visible: Tensor,  # [rows, num_keys] bool
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    num_rows, (num_kv_heads, num_keys, _) = len(query), keys.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    shape = (num_kv_heads, -1, num_rows, values.shape[2])
    # The heads that share keys are rows of one product.
    stacked = query.to(wide).transpose(0, 1).reshape(num_kv_heads, -1, query.shape[2])
    scores = stacked @ keys.to(wide).mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(*shape[:3], num_keys).masked_fill_(~visible, float("-inf"))
    if sinks is not None:
        beside = sinks.to(wide).view(num_kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, beside), dim=-1)
    weights = scores.softmax(dim=-1)[..., :num_keys]
    attended = weights.flatten(1, 2) @ values.to(wide)
    return attended.view(shape).flatten(0, 1).transpose(0, 1).to(query.dtype)


def _first_seen(position: int, sliding_window: int | None, chunk: int | None) -> int:
    """The first key that a query sees."""
    oldest = position - sliding_window + 1 if sliding_window else 0
    return max(0, oldest, position - position % chunk if chunk else 0)


def _visible(
    begin: int, end: int, num_rows: int, sliding_window: int | None, chunk: int | None
) -> Tensor:
    """Of the keys `begin` up to `end`, which each row sees: [num_rows, num_keys] bool.

    The last row sees the last key.
    """
    last = end - num_rows - begin  # the last key that row 0 sees
    visible = torch.ones(num_rows, end - begin, dtype=torch.bool).tril_(last)
    if sliding_window is not None:
        visible.triu_(last - sliding_window + 1)
    if chunk is not None:
        chunks = torch.arange(begin, end) // chunk
        visible &= chunks == chunks[-num_rows:, None]
    return visible
