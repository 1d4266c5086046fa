"""Paged attention by the compiled library: one call for all the sequences of a batch."""

from __future__ import annotations

from struct import Struct

import torch
from torch import Tensor

from kernels import native
from kernels.attention import AttentionBatch

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The library's numbers of the element types that it computes with."""

_CALL = Struct("=11q15q2d")
"""`pw_attention` of `native/attention.h`, field by field."""

_NO_GROUPS = (0, 0, 0, 0, 0)


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """See `kernels.attention.attend`. Raises `MemoryError` without memory for partial results."""
    num_heads, head_dim = query.shape[1:]
    block, value, head, token, within = kv.stride()
    assert within == 1
    assert query.dtype == kv.dtype
    if query.stride(-1) != 1:
        query = query.contiguous()
    output = torch.empty(query.shape, dtype=query.dtype)
    groups = batch.groups
    call = _CALL.pack(
        query.data_ptr(),
        output.data_ptr(),
        kv.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.query_starts.data_ptr(),
        batch.context_lens.data_ptr(),
        *(
            _NO_GROUPS
            if groups is None
            else (
                groups.begins.data_ptr(),
                groups.ends.data_ptr(),
                groups.member_starts.data_ptr(),
                groups.members.data_ptr(),
                groups.private_starts.data_ptr(),
            )
        ),
        query.stride(0),
        query.stride(1),
        block,
        value,
        head,
        token,
        batch.block_tables.stride(0),
        len(batch.context_lens),
        0 if groups is None else len(groups.begins),
        num_heads,
        kv.shape[2],
        head_dim,
        kv.shape[3],
        sliding_window or 0,
        TYPES[query.dtype],
        scale,
        softcap or 0.0,
    )
    if _attend(call) != 0:
        raise MemoryError("no memory for the partial results of attention")
    return output


_attend = native.function("pw_attend", native.text, returns=native.integer)
