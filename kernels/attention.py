"""The door to paged attention: writes new keys and values, and attends over blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels import backends
from kernels.backends import Backend
from kernels.reference import attention as reference
from kernels.types import AttentionBatch, AttentionShape


def prepare(device: torch.device, shape: AttentionShape) -> None:
    """Compile what attention of that shape needs, so that no request waits for a compiler."""
    backends.room("attention", device).prepare(shape)


def write_kv(
    key: Tensor, value: Tensor | None, kv: Tensor, slots: Tensor, *, backend: Backend | None = None
) -> None:
    """Store the keys and values of new tokens in their slots.

    `key` and `value` are [num_tokens, num_kv_heads, head_dim] with any strides, `slots` is
    [num_tokens] int64, and `kv` is one layer's view of the KV memory: [num_blocks, 2, num_kv_heads,
    block_size, head_dim], strided over its first dimension. A `kv` of int8, or of uint8 for fp8, is
    quantized and has longer rows (`kernels.kv_format`). Latents have no `value`, and a `kv` of
    [num_blocks, 1, 1, block_size, head_dim]: one row a token, which is key and value.
    """
    backends.room("attention", kv.device, backend).write_kv(key, value, kv, slots)


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
    output: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Causal attention of packed queries over the blocks of their sequences.

    `query` and the result, which is `output` if that is given, are [num_tokens, num_heads,
    head_dim], the latter contiguous; `kv` as in `write_kv`. Consecutive
    `num_heads / num_kv_heads` query heads share a KV head. With `sliding_window` a query sees key j
    only if `position - j < sliding_window`; with `softcap` scores become
    `softcap * tanh(scores / softcap)` before the softmax. With `chunk` a query sees the keys of its
    own chunk alone, those whose `position // chunk` is its own. `sinks` is [num_heads] float32, a
    score of each head that is part of the softmax's sum and has no value; it is neither scaled nor
    capped. With `value_dim`, which is less than head_dim, `kv` holds latents: a value is so many
    first dimensions of its key, and the result is [num_tokens, num_heads, value_dim]. Compiled
    kernels read the run of each of `batch.groups` once for all its members, unless a window or a
    chunk is set. Blocks in front of all that a sequence's queries see are not read. What
    `batch.mutual` says of some queries is computed in plain torch, as they are few.
    """
    assert sinks is None or (sinks.dtype, sinks.shape) == (torch.float32, query.shape[1:2])
    room = backends.room("attention", query.device, backend)
    options = scale, sliding_window, softcap, chunk, sinks, value_dim
    result: Tensor = room.attend(query, kv, batch, *options, output)
    if batch.mutual and (sliding_window is not None or not batch.mutual_in_windows):
        reference.attend_mutually(query, kv, batch, *options, result)
    return result


def attend_in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    most: int,
    *,
    scale: float,
    backend: Backend | None = None,
) -> Iterator[Tensor]:
    """Attention of every query over all keys of one sequence, which lie in no blocks.

    `query` is [num_tokens, num_heads, head_dim], `key` and `value` are [num_keys, num_kv_heads,
    head_dim], with any strides but the last; results, [num_queries, num_heads, head_dim], are of at
    most so many queries, one part behind the other.
    """
    room = backends.room("attention", query.device, backend)
    found: Iterator[Tensor] = room.attend_in_parts(query, key, value, most, scale)
    return found
