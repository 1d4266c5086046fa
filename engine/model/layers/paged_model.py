"""A model with its KV memory: a decoder that computes, and the blocks that it reads and writes.

What computes is `engine.model.layers.fused` for the families that it knows and
`engine.model.layers.eager` for all others; both are fed packed tokens, without padding.
`engine.model.load` loads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from engine.api import EngineError
from engine.api.kinds import Kind
from engine.batch.batch import Batch, one_by_one, token_by_token
from engine.batch.pictures import Seen
from engine.batch.staging import upload
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.layout import AttentionCall, AttentionLayout
from engine.model.layers.linear_places import Places
from engine.model.layers.page_channel import Pages, Tickets
from engine.model.sight.tower import Tower
from kernels.adapters import placed
from kernels.attention import prepare
from kernels.backends import default
from kernels.huge_pages import lazy_zeros
from kernels.kv_format import KvDtype, storage_dtype
from kernels.types import AdaptedRows, Adapter, AttentionShape


@dataclass(frozen=True, slots=True)
class Weights:
    """A loaded model: what computes, and what is known of it."""

    decoder: FusedDecoder | EagerDecoder
    layout: AttentionLayout
    config: PreTrainedConfig
    """Of the text model."""
    eos_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    """Of the weights, and of the KV memory unless that is quantized."""
    rotary_switch: int | None = None
    """See `EngineInfo.rotary_switch`."""
    limits_prompts: bool = False
    """See `EngineInfo.limits_prompts`."""
    quantized_by: str | None = None
    """The method whose codes are multiplied as the checkpoint has them, if it has some."""
    tower: Tower | None = None
    """What sees pictures; `None`: nothing does."""

    @property
    def is_fused(self) -> bool:
        """Whether fused layers compute, on packed weights, not the model's own modules."""
        return isinstance(self.decoder, FusedDecoder)


class Layout(Protocol):
    """Where in its pages an adapter lies: `engine.model.adapters.images` makes them."""

    def within(self, memory: Tensor, pages: Sequence[int]) -> Adapter:
        """What computes, once these pages of `memory`, [num_pages, bytes of a page], hold it."""
        ...


class PagedModel:
    """A loaded model with its KV memory.

    The memory is one tensor, [num_pages, elements of a page], in which a page is contiguous across
    all of its layers, so that it can move in one copy; `engine.model.layers.layout` says where each
    layer's keys and values lie. A row holds the dimensions of a head, quantized ones with a scale
    behind them (`kernels.kv_format`).
    """

    def __init__(
        self,
        weights: Weights,
        block_size: int,
        kv_dtype: KvDtype = "auto",
        batch_invariant: bool = False,
    ) -> None:
        """Over `weights`, which several may share; without memory until it is allocated.

        Raises `EngineError` for a `kv_dtype` in which the heads cannot be stored.
        """
        self.weights = weights
        self.block_size = block_size
        self.kv_dtype: KvDtype = kv_dtype
        self.batch_invariant = batch_invariant
        self.logit_error = 0.0
        """How far its logits were from the original's when it was loaded, relatively."""
        self.layout = weights.layout
        self.device = weights.device
        self.dtype = weights.dtype
        self.host_memory = torch.empty(0)
        self.rank = 0
        """Which part of the model this is, where several processes compute it."""
        self.tickets = Tickets()
        """For pages that the first rank fills here."""
        self.seen: dict[bytes, Seen] = {}
        """What was seen of pictures, by the names that requests have for them."""
        self.adapters: dict[bytes, Adapter] = {}
        """By the names that requests have for them: those whose weights are in the KV memory."""
        try:
            self.pages = self.layout.pages(block_size, self.kv_storage)
        except ValueError as error:
            raise EngineError(f"kv_dtype: {error}") from None
        self._use(torch.empty(0, self.pages.page_size, dtype=self.kv_storage))
        for shape in dict.fromkeys(map(self._shape, self.layout.calls)):
            prepare(self.device, shape)

    def _shape(self, call: AttentionCall) -> AttentionShape:
        return AttentionShape(
            num_heads=call.num_heads,
            num_kv_heads=call.num_kv_heads,
            head_dim=call.head_dim,
            dtype=self.dtype,
            block_size=self.block_size,
            storage=self.kv_storage,
            value_dim=call.value_dim,
        )

    def _use(self, memory: Tensor) -> None:
        self.memory = memory
        self.caches = self.pages.caches(memory)

    @property
    def linears(self) -> Places:
        """What adapters may change, of this rank's."""
        return self.adaptable[0][0]

    @property
    def adaptable(self) -> list[tuple[Places, int]]:
        """By rank: what adapters may change of it, and the bytes of its pages."""
        return [(self.weights.decoder.linears[0], self.page_bytes)]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of its blocks."""
        return self.pages.kinds

    @property
    def block_bytes(self) -> int:
        """What a block's tokens take where layers of every kind remember them."""
        return self.layout.block_bytes(self.block_size, self.kv_storage)

    @property
    def page_bytes(self) -> int:
        """Of one page, on this rank."""
        return self.pages.page_size * self.kv_storage.itemsize

    @property
    def kv_storage(self) -> torch.dtype:
        """The element type of the KV memory."""
        return storage_dtype(self.kv_dtype, self.dtype)

    def use_adapter(self, name: bytes, layouts: Sequence[Layout], pages: Sequence[int]) -> None:
        """From now on requests' adapter of that name is what these pages hold, by rank as these
        `layouts` say.
        """
        self.adapters[name] = layouts[self.rank].within(self.rows, pages)

    def forget_adapter(self, name: bytes) -> None:
        """There is no adapter of that name any more: no step that is still to come has it."""
        del self.adapters[name]

    def filling(self, others: Sequence[Pages]) -> Callable[[], None]:
        """What any thread is to do so that the ranks behind the first have these pages."""
        assert not others, "there is no other rank"
        return _nothing

    def expect_pages(self, ticket: int) -> None:
        """The first rank may fill pages here."""
        self.tickets.admit(ticket)

    def allocate(self, num_pages: int) -> None:
        """Allocate the KV memory, zeroed: no page ever shows what memory held before."""
        shape = num_pages, self.pages.page_size
        if self.device.type == "cpu":
            self._use(_lazy_zeros(shape, self.kv_storage))
        else:
            self._use(torch.zeros(shape, dtype=self.kv_storage, device=self.device))

    def allocate_host(self, num_pages: int) -> None:
        """Allocate the host tier: so many more pages in the host's memory.

        Beside a GPU it is pinned, so that copies run at the full speed of the bus and in the
        stream's order, without the host waiting for them.
        """
        self.host_memory = _lazy_zeros((num_pages, self.pages.page_size), self.kv_storage)
        if self.device.type == "cuda":
            _pin(self.host_memory)

    @torch.inference_mode()
    def swap_out(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy pages to the host: (page, its page) pairs. Each is one contiguous copy."""
        _copy_runs(self.memory, self.host_memory, moves)

    @torch.inference_mode()
    def swap_in(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy pages from the host: (its page, page) pairs. Each is one contiguous copy."""
        _copy_runs(self.host_memory, self.memory, moves)

    @property
    def rows(self) -> Tensor:
        """The bytes of the KV memory: [num_pages, bytes of a page]."""
        return self.memory.view(torch.uint8)

    def page(self, number: int) -> Tensor:
        """The bytes of one page: [bytes of a page]."""
        return self.rows[number]

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy the KV of whole pages, all (source, target) pairs in one call."""
        (pairs,) = upload([np.array(copies, dtype=np.int64)], self.device)
        sources, targets = pairs.unbind(1)
        self.memory.index_copy_(0, targets, self.memory.index_select(0, sources))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """Compute a packed batch, writing its KV. Returns logits [num_logit_rows, vocab_size]."""
        if batch.adapted:
            batch = replace(batch, adapted=placed(batch.adapted, self.device))
        if batch.seen is not None:
            batch = replace(batch, seen=batch.seen.on(self.device))
        return self.weights.decoder.forward(self.arranged(batch), self.caches)

    @torch.inference_mode()
    def forward_with(self, batch: Batch, adapted: Sequence[tuple[bytes, Tensor]]) -> Tensor:
        """`forward`, as the first rank tells of it: adapters by their names, and their rows."""
        rows = tuple(AdaptedRows(self.adapters[name], own) for name, own in adapted)
        return self.forward(replace(batch, adapted=rows))

    def arranged(self, batch: Batch) -> Batch:
        """A batch as it is computed where results must not depend on batch-mates."""
        if not self.batch_invariant:
            return batch
        if default(self.device) == "reference":
            return token_by_token(batch)
        states = batch.states
        return replace(
            batch,
            attention=replace(
                batch.attention, batch_invariant=True, mutual=one_by_one(batch.attention.mutual)
            ),
            states=None if states is None else replace(states, batch_invariant=True),
        )


def _nothing() -> None:
    """Nobody else is to have anything."""


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return lazy_zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


def _pin(memory: Tensor) -> None:
    """Pin host memory where it is. Raises `EngineError` if the system does not allow it.

    `torch.empty(pin_memory=True)` would round its size up to the next power of two.
    """
    if not memory.numel():
        return
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(status):
        raise EngineError(f"host_memory_bytes: {memory.nbytes} bytes cannot be pinned ({status})")


def _copy_runs(source: Tensor, target: Tensor, moves: Sequence[tuple[int, int]]) -> None:
    """Copy rows of `source` to rows of `target`; neighbours that stay neighbours go as one."""
    start = 0
    for end in range(1, len(moves) + 1):
        first, to = moves[start]
        length = end - start
        if end == len(moves) or moves[end] != (first + length, to + length):
            target[to : to + length].copy_(source[first : first + length], non_blocking=True)
            start = end
