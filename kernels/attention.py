"""The one entry to paged attention: picks the backend that fits the tensors' device."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, cast

import torch
from torch import Tensor

from kernels.native import library

Backend = Literal["triton", "native", "cpu", "reference"]


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Runs of keys that several sequences of a batch share, block for block.

    Group g is the keys `begins[g]` up to `ends[g]` (multiples of the block size) of its members;
    they lie in the block table row of its first member. The keys of a sequence are its groups'
    runs, in the order of the groups and without gaps from key 0, and then those from
    `private_starts[s]` on. Groups nest: a sequence may be in several, one run behind the other.
    Only sequences with exactly one query are members. All tensors are int32 and lie on the compute
    device.
    """

    begins: Tensor  # [num_groups]
    ends: Tensor  # [num_groups]; begin == end: padding, to be skipped
    member_starts: Tensor  # [num_groups + 1], into members
    members: Tensor  # [num_memberships], rows of sequences, ascending within a group
    private_starts: Tensor  # [num_seqs]; 0 for a sequence in no group
    max_members: int  # of the largest group


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's packed batch; all tensors lie on the compute device.

    The queries of sequence s are the packed tokens `query_starts[s]` up to `query_starts[s + 1]`,
    and they are its last tokens: query i sits at position `context_lens[s] - query_len + i`.
    """

    block_tables: Tensor  # [num_seqs, max_blocks] int32, rows padded with 0
    query_starts: Tensor  # [num_seqs + 1] int32
    context_lens: Tensor  # [num_seqs] int32, tokens with KV, this step's new ones included
    slots: Tensor  # [num_tokens] int64, block * block_size + offset of each new token's KV
    max_query_len: int
    max_context_len: int
    groups: PrefixGroups | None = None
    batch_invariant: bool = False  # a row's result must not depend on the others; no groups then


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What does not change from one call of a model's attention to the next."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Of queries and results."""
    block_size: int
    storage: torch.dtype
    """Of the KV memory: `dtype`, or a quantized type (`kernels.kv_format`)."""


class _Module(Protocol):
    """What every backend module provides."""

    def prepare(self, shape: AttentionShape) -> None: ...

    def write_kv(self, key: Tensor, value: Tensor, kv: Tensor, slots: Tensor) -> None: ...

    def attend(
        self,
        query: Tensor,
        kv: Tensor,
        batch: AttentionBatch,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> Tensor: ...


def prepare(device: torch.device, shape: AttentionShape) -> None:
    """Compile what attention of that shape needs, so that no request waits for a compiler."""
    _backend(None, device).prepare(shape)


def write_kv(
    key: Tensor, value: Tensor, kv: Tensor, slots: Tensor, *, backend: Backend | None = None
) -> None:
    """Store the keys and values of new tokens in their slots.

    `key` and `value` are [num_tokens, num_kv_heads, head_dim] with any strides, `slots` is
    [num_tokens] int64, and `kv` is one layer's view of the KV memory: [num_blocks, 2, num_kv_heads,
    block_size, head_dim], strided over its first dimension. A `kv` of int8, or of uint8 for fp8, is
    quantized and has longer rows (`kernels.kv_format`).
    """
    _backend(backend, kv.device).write_kv(key, value, kv, slots)


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Causal attention of packed queries over the blocks of their sequences.

    `query` and the result are [num_tokens, num_heads, head_dim]; `kv` as in `write_kv`. Consecutive
    `num_heads / num_kv_heads` query heads share a KV head. With `sliding_window` a query sees key j
    only if `position - j < sliding_window`; with `softcap` scores become
    `softcap * tanh(scores / softcap)` before the softmax. The run of each of `batch.groups` is read
    once for all its members, unless a sliding window is set.
    """
    module = _backend(backend, query.device)
    return module.attend(query, kv, batch, scale, sliding_window, softcap)


_MODULES = {
    "cpu": "kernels.cpu",
    "native": "kernels.native.attention",
    "reference": "kernels.reference.attention",
    "triton": "kernels.triton.attention",
}


def _backend(name: Backend | None, device: torch.device) -> _Module:
    # Imported on first use: a machine with a GPU never loads Numba, one without never Triton, and
    # Numba is for where there was no compiler to build the library.
    if name is None:
        on_cpu: Backend = "native" if library.available() else "cpu"
        name = "triton" if device.type == "cuda" else on_cpu
    return cast(_Module, import_module(_MODULES[name]))
