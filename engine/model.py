"""A `transformers` model that reads and writes KV blocks instead of a cache object.

The model keeps its own definition and weights; only its attention is replaced, through
`AttentionInterface`. Tokens of all sequences are packed into one row, without padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.batch import Batch, pack
from engine.config import EngineConfig
from engine.errors import EngineError, UnsupportedModel
from engine.staging import upload
from kernels.attention import attend, prepare, write_kv

_ATTENTION = "partywall_paged"
_UNKNOWN_TO_PAGING = ("s_aux", "position_bias")
"""Attention options of some families that change the scores in ways the kernels do not know."""


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """The shape of attention, alike in every layer."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block across all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * block_size * self.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Step:
    """What the attention of a running forward pass needs beside its tensors."""

    memory: Tensor  # [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]
    batch: Batch


_step: ContextVar[_Step] = ContextVar("step")
_probe: ContextVar[dict[int, tuple[int, int, int]]] = ContextVar("probe")


class PagedModel:
    """A loaded model with its KV memory.

    The memory is one tensor in which a block is contiguous across all layers, so that a block can
    move in one copy: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim].
    """

    def __init__(self, model: PreTrainedModel, block_size: int) -> None:
        """Take over `model`. Raises `UnsupportedModel` if its attention cannot be paged."""
        AttentionInterface.register(_ATTENTION, _paged_attention)
        self.model = model.eval()
        self.block_size = block_size
        self.layout = self._probe_layout()
        self.memory = torch.empty(0)
        self.host_memory = torch.empty(0)
        layout = self.layout
        prepare(
            self.device,
            layout.num_heads,
            layout.num_kv_heads,
            layout.head_dim,
            self.dtype,
            block_size,
        )
        self._verify()

    @property
    def device(self) -> torch.device:
        """Where the weights and the KV memory are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights and of the KV memory."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def allocate(self, num_blocks: int) -> None:
        """Allocate the KV memory, zeroed: no block ever shows what memory held before."""
        shape = self._memory_shape(num_blocks)
        if self.device.type == "cpu":
            self.memory = _lazy_zeros(shape, self.dtype)
        else:
            self.memory = torch.zeros(shape, dtype=self.dtype, device=self.device)

    def allocate_host(self, num_slots: int) -> None:
        """Allocate the host tier: `num_slots` more blocks in the host's memory.

        Beside a GPU it is pinned, so that copies run at the full speed of the bus and in the
        stream's order, without the host waiting for them.
        """
        self.host_memory = _lazy_zeros(self._memory_shape(num_slots), self.dtype)
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
            layout.head_dim,
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
        token = _step.set(_Step(self.memory, batch))
        try:
            output = self.model(
                input_ids=batch.token_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.logit_rows,
            )
        finally:
            _step.reset(token)
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def _probe_layout(self) -> AttentionLayout:
        """Learn the KV shape by watching what one forward pass hands to the attention."""
        seen: dict[int, tuple[int, int, int]] = {}
        token = _probe.set(seen)
        try:
            self.model.set_attn_implementation(_ATTENTION)
            one = torch.zeros((1, 1), dtype=torch.long, device=self.device)
            self.model(input_ids=one, position_ids=one, use_cache=False)
        finally:
            _probe.reset(token)
        if sorted(seen) != list(range(len(seen))) or not seen:
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not route its attention through "
                "transformers' AttentionInterface"
            )
        if len(set(seen.values())) != 1:
            raise UnsupportedModel("layers with different KV shapes cannot share one block layout")
        return AttentionLayout(len(seen), *seen[0])

    @torch.inference_mode()
    def _verify(self) -> None:
        """Compare paged logits with the model's own on a few tokens.

        Whatever a family does that paging does not know of (an unusual mask, sinks, a position
        bias) shows here, at start, instead of as subtly wrong answers. Compared is with the eager
        attention, which every family defines in full; others leave out what they cannot do.
        """
        length = min(24, self.block_size * 3 - 1)
        vocab = self.model.config.get_text_config().vocab_size
        ids = torch.arange(length).mul(7919).add(11).remainder(vocab).tolist()
        row = torch.tensor([ids], device=self.device)
        self.model.set_attn_implementation("eager")
        expected = self.model(input_ids=row, use_cache=False).logits[0].float()
        self.model.set_attn_implementation(_ATTENTION)
        num_blocks = -(-length // self.block_size)
        self.allocate(num_blocks)
        split = length // 2
        blocks = list(reversed(range(num_blocks)))
        parts = [
            self.forward(
                pack(
                    [(ids, start, count, blocks)], list(range(count)), self.block_size, self.device
                )
            )
            for start, count in ((0, split), (split, length - split))
        ]
        actual = torch.cat(parts).float()
        error = ((actual - expected).norm() / expected.norm()).item()
        tolerance = 1e-3 if self.dtype == torch.float32 else 0.1
        if not error < tolerance:
            raise UnsupportedModel(
                f"{type(self.model).__name__}: paged attention differs from the model's own "
                f"(relative error {error:.2g})"
            )


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

    Raises `UnsupportedModel` for architectures that cannot be served from blocks.
    """
    device = choose_device(config.device)
    text = AutoConfig.from_pretrained(config.model_path).get_text_config()
    if getattr(text, "attention_chunk_size", None):
        raise UnsupportedModel("attention in local chunks is not supported")
    model = AutoModelForCausalLM.from_pretrained(
        config.model_path, dtype=choose_dtype(config, device)
    )
    return PagedModel(model.to(device), config.block_size)


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def choose_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, and on a CPU with matrix tiles (AMX).

    Other CPUs multiply float32 faster, bfloat16 instructions or not; there it is float32, unless
    the weights would take more than a quarter of the free memory.
    """
    if config.dtype != "auto":
        dtype: torch.dtype = getattr(torch, config.dtype)
        return dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    stored = sum(file.stat().st_size for file in Path(config.model_path).glob("*.safetensors"))
    widened = 2 * stored
    small = widened <= psutil.virtual_memory().available / 4
    return torch.float32 if small and not torch.cpu._is_amx_tile_supported() else torch.bfloat16


def model_fingerprint(path: str, dtype: torch.dtype) -> bytes:
    """Identifies the weights by configuration, file names and sizes: part of every block hash."""
    digest = blake2b(str(dtype).encode(), digest_size=16)
    folder = Path(path)
    digest.update((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
    return digest.digest()


def _paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The `AttentionInterface` function, for packed tokens.

    `query`, `key` and `value` are [1, heads, tokens, head_dim], the result [1, tokens, heads,
    head_dim]. There is never a mask: the block tables say what a token may see.
    """
    unknown = [name for name in _UNKNOWN_TO_PAGING if options.get(name) is not None]
    if unknown:
        raise UnsupportedModel(f"{type(module).__name__} needs {', '.join(unknown)}")
    layer_index = getattr(module, "layer_idx", None)
    if layer_index is None or key.shape != value.shape:
        raise UnsupportedModel("keys and values must come in layers and have one shape")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    seen = _probe.get(None)
    if seen is not None:
        seen[layer_index] = (q.shape[1], k.shape[1], k.shape[2])
        return torch.zeros_like(q)[None], None
    step = _step.get()
    kv = step.memory[:, layer_index]
    write_kv(k, v, kv, step.batch.attention.slots)
    output = attend(
        q,
        kv,
        step.batch.attention,
        scale=scaling if scaling is not None else q.shape[-1] ** -0.5,
        sliding_window=sliding_window,
        softcap=softcap,
    )
    return output[None], None
