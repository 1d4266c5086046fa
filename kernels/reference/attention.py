"""Paged attention in plain torch: slow, in fp64, and meant to be obviously correct."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from kernels.attention import AttentionBatch, AttentionShape, PrefixGroups
from kernels.kv_format import dequantize, is_quantized, quantize

_Part = tuple[Tensor, Tensor]
"""Attention over some keys, [query_len, num_heads, head_dim], and [query_len, num_heads], the
logarithm of the sum of the exponentials of their scores."""


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
) -> Tensor:
    """See `kernels.attention.attend`.

    What a row sees is cut into parts, the runs of its groups and its private rest. Each has a
    softmax of its own, and they are merged by the logarithms of their sums of exponentials.
    """
    starts, context_lens = batch.query_starts.tolist(), batch.context_lens.tolist()
    private_starts = [0] * len(context_lens)
    parts: list[list[_Part]] = [[] for _ in context_lens]

    def attend_part(seq: int, begin: int, keys: Tensor, values: Tensor) -> None:
        rows = query[starts[seq] : starts[seq + 1]].double()
        position = context_lens[seq] - len(rows)
        part = _attend_part(rows, position, keys, values, begin, scale, sliding_window, softcap)
        parts[seq].append(part)

    if batch.groups is not None and sliding_window is None:
        private_starts = batch.groups.private_starts.tolist()
        for begin, end, members in _runs(batch.groups):
            keys, values = gather(kv, batch.block_tables[members[0]], end)
            for seq in members:
                attend_part(seq, begin, keys[:, begin:], values[:, begin:])
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for seq, (begin, end) in enumerate(zip(private_starts, context_lens, strict=True)):
        keys, values = gather(kv, batch.block_tables[seq], end)
        attend_part(seq, begin, keys[:, begin:], values[:, begin:])
        output[starts[seq] : starts[seq + 1]] = _merge(parts[seq]).to(query.dtype)
    return output


def gather(kv: Tensor, block_table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
    """One sequence's keys and values, copied out: [num_kv_heads, context_len, head_dim] each."""
    num_blocks = -(-context_len // kv.shape[3])
    blocks = kv.index_select(0, block_table[:num_blocks])
    both = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len]
    if is_quantized(kv.dtype):
        both = dequantize(both)
    return both[0], both[1]


def _runs(groups: PrefixGroups) -> Iterator[tuple[int, int, list[int]]]:
    """The first key, the end and the members of every group with a run."""
    members = groups.members.tolist()
    bounds = pairwise(groups.member_starts.tolist())
    for begin, end, (first, last) in zip(
        groups.begins.tolist(), groups.ends.tolist(), bounds, strict=True
    ):
        if begin < end:
            yield begin, end, members[first:last]


def _attend_part(
    query: Tensor,  # [query_len, num_heads, head_dim] fp64
    position: int,  # of the first query
    keys: Tensor,  # [num_kv_heads, num_keys, head_dim]
    values: Tensor,
    begin: int,  # position of the first key
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> _Part:
    query_len, num_heads, _ = query.shape
    num_kv_heads, num_keys, _ = keys.shape
    keys = keys.double().repeat_interleave(num_heads // num_kv_heads, dim=0)
    values = values.double().repeat_interleave(num_heads // num_kv_heads, dim=0)
    scores = torch.einsum("qhd,hkd->qhk", query, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    distance = (
        torch.arange(position, position + query_len, device=query.device)[:, None]
        - torch.arange(begin, begin + num_keys, device=query.device)[None, :]
    )
    visible = distance >= 0
    if sliding_window is not None:
        visible &= distance < sliding_window
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    return torch.einsum("qhk,hkd->qhd", scores.softmax(dim=-1), values), scores.logsumexp(dim=-1)


def _merge(parts: list[_Part]) -> Tensor:
    """Attention over all keys from that over disjoint parts of them."""
    outputs, log_sums = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    return (log_sums.softmax(dim=0)[..., None] * outputs).sum(dim=0)
