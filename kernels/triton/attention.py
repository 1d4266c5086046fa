"""Paged attention on a GPU: the Triton kernels, each launched where a batch needs it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.kv_format import is_quantized, row_size
from kernels.reference.attention import attend_in_parts as attend_in_parts
from kernels.triton import cache as triton_cache
from kernels.triton.decode import attend_decode
from kernels.triton.prefill import attend_chunks, chunks_of
from kernels.triton.walk import latent_heads
from kernels.triton.work import SPLIT
from kernels.types import AttentionBatch, AttentionShape, PrefixGroups


def prepare(shape: AttentionShape) -> None:
    """See `kernels.attention.prepare`: compiles for the current GPU, or loads Triton's cache."""
    device = torch.device("cuda", torch.cuda.current_device())
    kv_heads, head_dim, block_size = shape.num_kv_heads, shape.head_dim, shape.block_size
    row = row_size(head_dim, shape.storage)
    sides = 2 if shape.value_dim is None else 1
    kv = torch.zeros((2, sides, kv_heads, block_size, row), dtype=shape.storage, device=device)

    def tensor(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def run(query_len: int, groups: PrefixGroups | None, keys: int = block_size + 1) -> None:
        batch = AttentionBatch(
            block_tables=torch.zeros((2, -(-keys // block_size)), dtype=torch.int32, device=device),
            query_starts=tensor(0, query_len, 2 * query_len),
            context_lens=tensor(keys, keys),
            slots=torch.arange(2 * query_len, device=device),
            max_query_len=query_len,
            max_context_len=keys,
            groups=groups,
            batch_invariant=keys > SPLIT,  # then chunks are surely split
        )
        token = kv.new_zeros(2 * query_len, kv_heads, head_dim, dtype=shape.dtype)
        write_kv(token, token if sides == 2 else None, kv, batch.slots)
        query = kv.new_zeros(2 * query_len, shape.num_heads, head_dim, dtype=shape.dtype)
        attend(query, kv, batch, 1.0, None, None, value_dim=shape.value_dim)

    run(query_len=2, groups=None, keys=SPLIT + 1)
    run(query_len=1, groups=None)
    shared = PrefixGroups(
        begins=tensor(0),
        ends=tensor(block_size),
        member_starts=tensor(0, 2),
        members=tensor(0, 1),
        private_starts=tensor(block_size, block_size),
        max_members=2,
    )
    for max_members in (2, 4, 8, 16, 32, 64, 128):  # every number of rows that a tile may have
        run(query_len=1, groups=replace(shared, max_members=max_members))


def write_kv(key: Tensor, value: Tensor | None, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    with torch.cuda.device(kv.get_device()):  # Triton launches on the current device
        triton_cache.write_kv(_rows(key), None if value is None else _rows(value), kv, slots)


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
    """See `kernels.attention.attend`."""
    query, dim = _rows(query), value_dim or query.shape[2]
    if output is None:
        output = torch.empty((*query.shape[:2], dim), dtype=query.dtype, device=query.device)
    if value_dim is not None:
        kv = _divided(kv, query)
    options = scale, sliding_window, softcap, chunk, sinks, dim
    with torch.cuda.device(kv.get_device()):
        chunks = chunks_of(batch)
        if chunks:
            attend_chunks(query, kv, batch, chunks, *options, output)
        if len(chunks) < len(batch.context_lens):
            attend_decode(query, kv, batch, *options, output)
    return output


def _divided(kv: Tensor, query: Tensor) -> Tensor:
    """Latents as if several KV heads had the same ones, each for the queries of a tile."""
    heads = latent_heads(query.shape[1], query.dtype, quantized=is_quantized(kv.dtype))
    return kv.expand(-1, -1, query.shape[1] // heads, -1, -1)


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
