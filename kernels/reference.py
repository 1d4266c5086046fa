"""Paged attention in plain torch: slow, in fp64, and meant to be obviously correct."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import AttentionBatch
from kernels.kv_format import dequantize, is_quantized, quantize


def prepare(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int
) -> None:
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
) -> Tensor:
    """See `kernels.attention.attend`."""
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    starts = batch.query_starts.tolist()
    for row, context_len in enumerate(batch.context_lens.tolist()):
        rows = slice(starts[row], starts[row + 1])
        keys, values = gather(kv, batch.block_tables[row], context_len)
        output[rows] = _attend_one(
            query[rows].double(), keys.double(), values.double(), scale, sliding_window, softcap
        ).to(query.dtype)
    return output


def gather(kv: Tensor, block_table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
    """One sequence's keys and values, copied out: [num_kv_heads, context_len, head_dim] each."""
    num_blocks = -(-context_len // kv.shape[3])
    blocks = kv.index_select(0, block_table[:num_blocks])
    both = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len]
    if is_quantized(kv.dtype):
        both = dequantize(both)
    return both[0], both[1]


def _attend_one(
    query: Tensor,  # [query_len, num_heads, head_dim]
    keys: Tensor,  # [num_kv_heads, context_len, head_dim]
    values: Tensor,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    query_len, num_heads, _ = query.shape
    num_kv_heads, context_len, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=0)
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", query, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = (
        torch.arange(context_len - query_len, context_len, device=query.device)[:, None]
        - torch.arange(context_len, device=query.device)[None, :]
    )
    visible = distance >= 0
    if sliding_window is not None:
        visible &= distance < sliding_window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,hkd->qhd", weights, values)
