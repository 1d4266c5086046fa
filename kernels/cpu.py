"""Paged attention on a CPU: a compiled kernel for short query runs, torch for long ones."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from kernels import cpu_paged, cpu_plan
from kernels.attention import AttentionBatch, AttentionShape
from kernels.reference.attention import gather

LONGEST_SHORT_RUN = 16
"""Queries of one sequence up to which the block walk beats gathering the sequence for torch."""

_ROWS_IN_SCORES = 256
"""Queries whose scores are materialised together where scores need a soft cap."""

_ELEMENTS = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.uint16,
    torch.float16: torch.int16,
}

_LEAST_SHARE = 32768
"""What is worth waking a thread for, as `cpu_plan.Plan` counts: some 100 us."""

# Plain threads around code without the GIL. Numba's own OpenMP layer would overwrite torch's thread
# count (they share one OpenMP runtime), and its barriers spin away a time slice on a busy machine.
_threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="attention")


def prepare(shape: AttentionShape) -> None:
    """See `kernels.attention.prepare`: the first call on a machine compiles (seconds), later ones
    load from Numba's cache."""
    kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
    kv = torch.zeros(1, 2, kv_heads, shape.block_size, head_dim, dtype=shape.storage)
    token = torch.zeros(1, kv_heads, head_dim, dtype=shape.dtype)
    one = torch.ones(1, dtype=torch.int32)
    batch = AttentionBatch(
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=one,
        slots=torch.zeros(1, dtype=torch.int64),
        max_query_len=1,
        max_context_len=1,
    )
    write_kv(token, token, kv, batch.slots)
    query = torch.zeros(1, shape.num_heads, head_dim, dtype=shape.dtype)
    attend(query, kv, batch, scale=1.0, sliding_window=None, softcap=None)


def write_kv(key: Tensor, value: Tensor, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    assert key.dtype == value.dtype == kv.dtype
    blocks, offsets = slots // kv.shape[3], slots % kv.shape[3]
    kv[:, 0].transpose(1, 2)[blocks, offsets] = key
    kv[:, 1].transpose(1, 2)[blocks, offsets] = value


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """See `kernels.attention.attend`."""
    output = torch.empty(query.shape, dtype=torch.float32)
    _attend_short(query, kv, batch, scale, sliding_window, softcap, output)
    if batch.max_query_len > LONGEST_SHORT_RUN:
        starts, context_lens = batch.query_starts.tolist(), batch.context_lens.tolist()
        for seq, context_len in enumerate(context_lens):
            rows = slice(starts[seq], starts[seq + 1])
            if rows.stop - rows.start > LONGEST_SHORT_RUN:
                output[rows] = _attend_long(
                    query[rows],
                    kv,
                    batch.block_tables[seq],
                    context_len,
                    scale,
                    sliding_window,
                    softcap,
                )
    return output.to(query.dtype)


def _attend_short(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    output: Tensor,
) -> None:
    num_heads, num_kv_heads = query.shape[1], kv.shape[2]
    block, value, head, token, _ = kv.stride()
    options = cpu_paged.Options(np.float32(scale), sliding_window or 0, np.float32(softcap or 0.0))
    plan = cpu_plan.plan_items(
        batch.query_starts.numpy(),
        batch.context_lens.numpy(),
        _groups(batch, options.window),
        LONGEST_SHORT_RUN,
        num_heads,
        num_kv_heads,
        options.window,
    )
    num_rows = int(plan.first_row[-1])
    partial = torch.empty(num_rows, query.shape[2]).numpy()  # torch's memory starts a cache line
    statistics = torch.empty(num_rows, 2).numpy()
    arguments = (
        plan,
        query.float().contiguous().numpy(),
        _flat(kv),
        cpu_paged.Layout(block, value, head, token, kv.shape[3]),
        num_kv_heads,
        batch.block_tables.contiguous().numpy(),  # another layout would compile anew
        options,
        partial,
        statistics,
    )
    shares = max(1, min(torch.get_num_threads(), int(plan.cost[-1]) // _LEAST_SHARE))
    others = [
        _threads.submit(cpu_paged.attend_part, share, shares, *arguments)
        for share in range(1, shares)
    ]
    cpu_paged.attend_part(0, shares, *arguments)
    for other in others:
        other.result()
    cpu_plan.merge_parts(plan, num_kv_heads, partial, statistics, output.numpy())


def _groups(batch: AttentionBatch, window: int) -> cpu_plan.Groups:
    """The shared runs of a batch; none where a window hides their beginnings."""
    groups = batch.groups
    if groups is None or window:
        none = np.zeros(0, np.int32)
        private_starts = np.zeros(len(batch.context_lens), np.int32)
        return cpu_plan.Groups(none, none, np.zeros(1, np.int32), none, private_starts)
    return cpu_plan.Groups(
        groups.begins.numpy(),
        groups.ends.numpy(),
        groups.member_starts.numpy(),
        groups.members.numpy(),
        groups.private_starts.numpy(),
    )


def _attend_long(
    query: Tensor,  # [query_len, num_heads, head_dim]
    kv: Tensor,
    block_table: Tensor,
    context_len: int,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """One sequence's chunk: copy out its visible keys, then torch's flash attention."""
    query_len, num_heads, head_dim = query.shape
    first = 0
    if sliding_window is not None and sliding_window >= context_len:
        sliding_window = None
    if sliding_window is not None:
        oldest = max(0, context_len - query_len - sliding_window + 1)
        first = oldest // kv.shape[3] * kv.shape[3]
    keys, values = gather(kv, block_table[first // kv.shape[3] :], context_len - first)
    num_kv_heads, num_keys, _ = keys.shape
    # [num_kv_heads, group, query_len, head_dim]: the heads of a group share keys without a copy.
    grouped = query.view(query_len, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    shape = (num_kv_heads, grouped.shape[1], num_keys, head_dim)
    keys, values = keys[:, None].expand(shape), values[:, None].expand(shape)
    if softcap is not None:
        attended = _attend_capped(grouped, keys, values, scale, sliding_window, softcap)
    elif query_len == num_keys and sliding_window is None:
        attended = functional.scaled_dot_product_attention(
            grouped, keys, values, is_causal=True, scale=scale
        )
    else:
        mask = _visible(query_len, num_keys, sliding_window)
        attended = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, scale=scale
        )
    return attended.permute(2, 0, 1, 3).reshape(query_len, num_heads, head_dim)


def _attend_capped(
    query: Tensor,  # [num_kv_heads, group, query_len, head_dim]
    keys: Tensor,
    values: Tensor,
    scale: float,
    sliding_window: int | None,
    softcap: float,
) -> Tensor:
    query_len = query.shape[2]
    visible = _visible(query_len, keys.shape[2], sliding_window)
    keys, values = keys.float().transpose(-1, -2), values.float()
    parts = []
    for start in range(0, query_len, _ROWS_IN_SCORES):
        rows = slice(start, start + _ROWS_IN_SCORES)
        scores = query[:, :, rows].float() @ keys
        scores = scores.mul_(scale / softcap).tanh_().mul_(softcap)
        scores = scores.masked_fill_(~visible[rows], float("-inf"))
        parts.append(scores.softmax(dim=-1) @ values)
    return torch.cat(parts, dim=2)


def _visible(query_len: int, num_keys: int, sliding_window: int | None) -> Tensor:
    """[query_len, num_keys] bool; the last query sees the last key."""
    visible = torch.ones(query_len, num_keys, dtype=torch.bool).tril_(num_keys - query_len)
    if sliding_window is not None:
        visible.triu_(num_keys - query_len - sliding_window + 1)
    return visible


def _flat(tensor: Tensor) -> npt.NDArray[np.generic]:
    """All memory that `tensor` spans, gaps included, as one array without a copy.

    Numba knows no 16-bit floats: it gets their bits, told apart by sign (see `cpu_paged`).
    """
    assert tensor.stride(-1) == 1
    span = 1 + sum(
        (n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    flat = tensor.as_strided((span if tensor.numel() else 0,), (1,))
    array: npt.NDArray[np.generic] = flat.view(_ELEMENTS[tensor.dtype]).numpy()
    return array
