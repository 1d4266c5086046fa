"""Whether a model that is served from blocks computes what the model itself does.

Whatever a family does that paging does not know of (an unusual mask, a position bias) shows on one
short sequence, at start, instead of as subtly wrong answers. Arithmetic must not hide it: the
model's own layers are compared in float32, in which nothing but order of summation differs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from engine.api import UnsupportedModel
from engine.batch.batch import Batch, pack
from engine.model.layers.eager import EagerDecoder
from engine.model.layers.layout import AttentionLayout

SAMPLE_TOKENS = 24
_SHORT = 7
"""In place of longer windows and the like while paging is compared: the sample leaves them."""
_LENGTHS = ("sliding_window", "attention_chunk_size", "floor_scale")
"""What models and their parts call them."""
TOLERANCE = 1e-4
"""Relative error of logits in float32. Those of models with nothing in common differ by 1.4."""

_Spare = defaultdict[torch.Size, list[Tensor]]
"""Memory of parts that have computed, for those to come: fresh memory is slow to write."""


def sample(vocab_size: int) -> list[int]:
    """Tokens of a short sequence."""
    return torch.arange(SAMPLE_TOKENS).mul(7919).add(11).remainder(vocab_size).tolist()


def in_parts(
    ids: list[int], block_size: int, device: torch.device, num_columns: int = 1
) -> list[Batch]:
    """One sequence in two chunks, over the first pages in reverse order, with a logit row for each
    token.
    """
    num_blocks = -(-len(ids) // block_size)
    pages = np.arange(num_columns * num_blocks, dtype=np.int32)[::-1].reshape(num_columns, -1)
    split = len(ids) // 2
    return [
        pack([(ids, start, count, pages)], range(count), block_size, device)
        for start, count in ((0, split), (split, len(ids) - split))
    ]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Of logits, over all that are given."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@torch.inference_mode()
def checked_logits(decoder: EagerDecoder, ids: list[int], block_size: int) -> Tensor:
    """What the model computes for a sequence, in float32: [num_tokens, vocab_size].

    Raises `UnsupportedModel` if it is not what comes of paging its attention.
    """
    with _in_float32(decoder.model):
        expected = decoder.own_logits(ids)
        with _shortened(decoder) as were_long:
            own = decoder.own_logits(ids) if were_long else expected
            paged = _paged_logits(decoder, ids, block_size)
    error = relative_error(paged, own)
    if not error < TOLERANCE:
        raise UnsupportedModel(
            f"{type(decoder.model).__name__} computes something else when its attention is paged "
            f"(relative error of logits {error:.2g})"
        )
    return expected


def _paged_logits(decoder: EagerDecoder, ids: list[int], block_size: int) -> Tensor:
    device = decoder.model.device
    pages = AttentionLayout(tuple(decoder.calls)).pages(block_size, torch.float32)
    num_blocks = -(-len(ids) // block_size)
    caches = pages.caches(torch.zeros(num_blocks, pages.page_size, device=device))
    return torch.cat([decoder.forward(part, caches) for part in in_parts(ids, block_size, device)])


@contextmanager
def _shortened(decoder: EagerDecoder) -> Iterator[bool]:
    """Let nothing of the model be longer than the sample; yields whether something was."""
    owners: dict[int, Any] = {}
    for module in decoder.model.modules():
        owners |= {id(one): one for one in (module, getattr(module, "config", None))}
    named = [(one, name, _length(one, name)) for one in owners.values() for name in _LENGTHS]
    long = [(one, name, length) for one, name, length in named if length > _SHORT]
    calls = decoder.calls
    try:
        for owner, name, _ in long:
            setattr(owner, name, _SHORT)
        if long:
            decoder.watch()
        yield bool(long)
    finally:
        for owner, name, length in long:
            setattr(owner, name, length)
        decoder.calls = calls


def _length(owner: Any, name: str) -> float:
    length = getattr(owner, "__dict__", {}).get(name)
    return length if isinstance(length, int | float) else 0


@contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Widen each part of the model while it computes: all of it at once might not fit."""
    hooks: list[RemovableHandle] = []
    spare: _Spare = defaultdict(list)
    for part in _parts(model):
        widened = _Widened(spare)
        hooks.append(part.register_forward_pre_hook(widened.begin))
        hooks.append(part.register_forward_hook(widened.end, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The layers, and what is beside them."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        elif any(isinstance(below, nn.ModuleList) for below in child.modules()):
            yield from _parts(child)
        else:
            yield child


class _Widened:
    """A part that computes in float32, and what it has instead otherwise."""

    def __init__(self, spare: _Spare) -> None:
        self._spare = spare
        self._narrow: list[tuple[dict[str, Any], str, Tensor]] = []

    def begin(self, part: nn.Module, _: object) -> None:
        for module in part.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.dtype in (torch.bfloat16, torch.float16):
                        self._narrow.append((tensors, name, tensor))
        for tensors, name, tensor in self._narrow:
            spare = self._spare[tensor.shape]
            wide = spare.pop() if spare else torch.empty_like(tensor, dtype=torch.float32)
            tensors[name] = nn.Parameter(wide.copy_(tensor), requires_grad=False)

    def end(self, *_: object) -> None:
        for tensors, name, tensor in self._narrow:
            self._spare[tensor.shape].append(tensors[name].data)
            tensors[name] = tensor
        self._narrow.clear()
