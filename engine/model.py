"""A model with its KV memory: a decoder that computes, and the blocks that it reads and writes.

`transformers` owns definition, weights and configuration. What runs them is `engine.decoder` for
the families that it knows and `engine.eager` for all others; both are fed packed tokens, without
padding, and are compared with the model's own logits at start.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.batch import Batch, pack
from engine.config import EngineConfig
from engine.decoder import FusedDecoder, fuse
from engine.eager import EagerDecoder
from engine.errors import EngineError, UnsupportedModel
from engine.families import Unfamiliar
from engine.staging import upload
from kernels import native
from kernels.attention import prepare
from kernels.kv_format import KvDtype, row_size, storage_dtype
from kernels.linear import Quantization

_log = logging.getLogger(__name__)

_SAMPLE_TOKENS = 24
"""Of the sequence on which a loaded model is compared with its original."""


class Decoder(Protocol):
    """What computes: everything between token ids and logits."""

    def forward(self, batch: Batch, memory: Tensor) -> Tensor:
        """Compute a packed batch, writing its KV to `memory` (see `PagedModel`).

        Returns the logits of `batch.logit_rows`: [num_logit_rows, vocab_size].
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """The shape of attention, alike in every layer."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, storage: torch.dtype) -> int:
        """Bytes of one block across all layers, keys and values.

        Raises `ValueError` if the heads cannot be stored in this type.
        """
        row_bytes = row_size(self.head_dim, storage) * storage.itemsize
        return 2 * self.num_layers * self.num_kv_heads * block_size * row_bytes


@dataclass(frozen=True, slots=True)
class Weights:
    """A loaded model: what computes, and what is known of it."""

    decoder: Decoder
    layout: AttentionLayout
    config: PreTrainedConfig
    """Of the text model."""
    eos_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    """Of the weights, and of the KV memory unless that is quantized."""

    @property
    def is_fused(self) -> bool:
        """Whether fused layers compute, on packed weights, not the model's own modules."""
        return isinstance(self.decoder, FusedDecoder)


class PagedModel:
    """A loaded model with its KV memory.

    The memory is one tensor in which a block is contiguous across all layers, so that a block can
    move in one copy: [num_blocks, num_layers, 2, num_kv_heads, block_size, row]. A row holds the
    dimensions of a head, quantized ones with a scale behind them (`kernels.kv_format`).
    """

    def __init__(
        self,
        weights: Weights,
        block_size: int,
        kv_dtype: KvDtype = "auto",
        batch_invariant: bool = False,
    ) -> None:
        """Over `weights`, which several may share; without memory until it is allocated."""
        self.weights = weights
        self.block_size = block_size
        self.kv_dtype: KvDtype = kv_dtype
        self._batch_invariant = batch_invariant
        self.logit_error = 0.0
        """How far its logits were from the original's when it was loaded, relatively."""
        self.layout = weights.layout
        self.device = weights.device
        self.dtype = weights.dtype
        self.memory = torch.empty(0)
        self.host_memory = torch.empty(0)
        prepare(
            self.device,
            self.layout.num_heads,
            self.layout.num_kv_heads,
            self.layout.head_dim,
            self.dtype,
            block_size,
        )

    @property
    def kv_storage(self) -> torch.dtype:
        """The element type of the KV memory."""
        return storage_dtype(self.kv_dtype, self.dtype)

    def allocate(self, num_blocks: int) -> None:
        """Allocate the KV memory, zeroed: no block ever shows what memory held before."""
        shape = self._memory_shape(num_blocks)
        if self.device.type == "cpu":
            self.memory = _lazy_zeros(shape, self.kv_storage)
        else:
            self.memory = torch.zeros(shape, dtype=self.kv_storage, device=self.device)

    def allocate_host(self, num_slots: int) -> None:
        """Allocate the host tier: `num_slots` more blocks in the host's memory.

        Beside a GPU it is pinned, so that copies run at the full speed of the bus and in the
        stream's order, without the host waiting for them.
        """
        self.host_memory = _lazy_zeros(self._memory_shape(num_slots), self.kv_storage)
        if self.device.type == "cuda":
            _pin(self.host_memory)

    @torch.inference_mode()
    def swap_out(self, moves: Rows[tuple[int, int]]) -> None:
        """Copy blocks to the host: (block, slot) pairs. Each is one contiguous copy."""
        _copy_runs(self.memory, self.host_memory, moves)

    @torch.inference_mode()
    def swap_in(self, moves: Rows[tuple[int, int]]) -> None:
        """Copy blocks from the host: (slot, block) pairs. Each is one contiguous copy."""
        _copy_runs(self.host_memory, self.memory, moves)

    def _memory_shape(self, num_blocks: int) -> tuple[int, ...]:
        layout = self.layout
        return (
            num_blocks,
            layout.num_layers,
            2,
            layout.num_kv_heads,
            self.block_size,
            row_size(layout.head_dim, self.kv_storage),
        )

    @torch.inference_mode()
    def copy_blocks(self, copies: Rows[tuple[int, int]]) -> None:
        """Copy the KV of whole blocks, all (source, target) pairs in one call."""
        (pairs,) = upload([np.array(copies, dtype=np.int64)], self.device)
        sources, targets = pairs.unbind(1)
        self.memory.index_copy_(0, targets, self.memory.index_select(0, sources))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """Compute a packed batch, writing its KV. Returns logits [num_logit_rows, vocab_size]."""
        if self._batch_invariant:
            attention = replace(batch.attention, batch_invariant=True)
            batch = replace(batch, attention=attention)
        return self.weights.decoder.forward(batch, self.memory)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Anonymous pages: they are zero, and take memory only once they are first written."""
    if not math.prod(shape):
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


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


def _copy_runs(source: Tensor, target: Tensor, moves: Rows[tuple[int, int]]) -> None:
    """Copy rows of `source` to rows of `target`; neighbours that stay neighbours go as one."""
    start = 0
    for end in range(1, len(moves) + 1):
        first, to = moves[start]
        length = end - start
        if end == len(moves) or moves[end] != (first + length, to + length):
            target[to : to + length].copy_(source[first : first + length], non_blocking=True)
            start = end


def load_model(config: EngineConfig) -> PagedModel:
    """Load the weights that `config` names onto its device.

    Raises `UnsupportedModel` for architectures that cannot be served from blocks, and `EngineError`
    for options that the device or the architecture does not have.
    """
    device = choose_device(config.device)
    if config.quantize != "none" and device.type != "cpu":
        raise EngineError(f"quantize: {config.quantize} weights are for CPUs; this is a GPU")
    if config.kv_dtype != "auto" and device.type != "cuda":
        raise EngineError(f"kv_dtype: a cache of {config.kv_dtype} needs a GPU; this is a CPU")
    model, error = _load(config, device)
    if model.weights.is_fused and config.quantize == "none" and not error < _tolerance(model):
        _log.warning("fused layers differ from the model's own (by %.2g), which serve now", error)
        del model
        model, error = _load(config, device, may_fuse=False)
    if not error < _tolerance(model, config.quantize):
        raise UnsupportedModel(
            f"{config.model_path}: paged logits differ from the model's own "
            f"(relative error {error:.2g})"
        )
    model.logit_error = error
    return model


def _load(
    config: EngineConfig, device: torch.device, may_fuse: bool = True
) -> tuple[PagedModel, float]:
    """The model, and how far its logits are from those of the model as it was loaded.

    Whatever a family does that paging or fusing does not know of (an unusual mask, sinks, a
    position bias) shows in them, at start, instead of as subtly wrong answers.
    """
    text = AutoConfig.from_pretrained(config.model_path).get_text_config()
    if getattr(text, "attention_chunk_size", None):
        raise UnsupportedModel("attention in local chunks is not supported")
    dtype = choose_dtype(config, device)
    model = AutoModelForCausalLM.from_pretrained(config.model_path, dtype=dtype).to(device)
    eager = EagerDecoder(model)
    length = min(_SAMPLE_TOKENS, config.block_size * 3 - 1)
    ids = torch.arange(length).mul(7919).add(11).remainder(text.vocab_size).tolist()
    expected = eager.own_logits(ids).float()
    weights = Weights(
        decoder=(_fused(eager, config) if may_fuse else None) or eager,
        layout=_layout(eager),
        config=text,
        eos_token_ids=_eos_token_ids(model),
        device=device,
        dtype=dtype,
    )
    del model, eager
    _return_memory(device)
    paged = PagedModel(weights, config.block_size, config.kv_dtype, config.batch_invariant)
    error = (_paged_logits(paged, ids) - expected).norm() / expected.norm()
    return paged, error.item()


def _fused(eager: EagerDecoder, config: EngineConfig) -> FusedDecoder | None:
    """The model's layers, fused; None where its family is not known."""
    most = max(config.max_context_tokens, _SAMPLE_TOKENS) if config.max_context_tokens else None
    try:
        return fuse(
            eager.model,
            eager.calls,
            most,
            quantization=config.quantize,
            batch_invariant=config.batch_invariant,
        )
    except Unfamiliar as reason:
        if config.quantize != "none":
            raise EngineError(f"quantize: not for this model: {reason}") from None
        _log.info("layers are not fused: %s", reason)
        return None


def _layout(eager: EagerDecoder) -> AttentionLayout:
    shapes = {(call.num_heads, call.num_kv_heads, call.head_dim) for call in eager.calls}
    if len(shapes) != 1:
        raise UnsupportedModel("layers with different KV shapes cannot share one block layout")
    return AttentionLayout(len(eager.calls), *shapes.pop())


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    eos = model.generation_config.eos_token_id
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    return tuple([eos] if isinstance(eos, int) else eos or [])


def _paged_logits(model: PagedModel, ids: list[int]) -> Tensor:
    """Logits of one sequence, computed in two parts over blocks in reverse order, in float32."""
    num_blocks = -(-len(ids) // model.block_size)
    model.allocate(num_blocks)
    split = len(ids) // 2
    blocks = list(reversed(range(num_blocks)))
    parts = [
        model.forward(
            pack([(ids, start, count, blocks)], range(count), model.block_size, model.device)
        )
        for start, count in ((0, split), (split, len(ids) - split))
    ]
    return torch.cat(parts).float()


def _tolerance(model: PagedModel, quantize: Quantization = "none") -> float:
    """Relative error of logits up to which they count as the same."""
    if quantize != "none":
        return 0.3
    return 1e-3 if model.dtype == torch.float32 else 0.1


def _return_memory(device: torch.device) -> None:
    """Give the originals' memory back: to the system, or to whoever allocates on the GPU next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, and on a CPU with matrix tiles (AMX) or the compiled library.

    The library reads half as many bytes so, on any CPU. torch multiplies float32 faster than
    bfloat16 without AMX; there it is float32, unless the weights would take more than a quarter of
    the free memory.
    """
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if native.available() or torch.cpu._is_amx_tile_supported():
        return torch.bfloat16
    stored = sum(file.stat().st_size for file in Path(config.model_path).glob("*.safetensors"))
    widened = 2 * stored
    small = widened <= psutil.virtual_memory().available / 4
    return torch.float32 if small else torch.bfloat16


def model_fingerprint(config: EngineConfig, dtype: torch.dtype) -> bytes:
    """Identifies what computes KV, and how it is kept: part of every block hash.

    The weights count by configuration, file names and sizes.
    """
    kept = f"{dtype} {config.quantize} {config.kv_dtype}"
    digest = blake2b(kept.encode(), digest_size=16)
    folder = Path(config.model_path)
    digest.update((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
    return digest.digest()
