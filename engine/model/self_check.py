"""Whether a model that is served from blocks computes what the model itself does.

Whatever a family does that paging does not know of (an unusual mask, a position bias) shows on one
short sequence, at start, instead of as subtly wrong answers. Arithmetic must not hide it: the
model's own layers are compared in float32, in which nothing but order of summation differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api import UnsupportedModel
from engine.batch.batch import Batch, pack
from engine.model.layers.eager import EagerDecoder
from engine.model.layers.layout import AttentionLayout
from engine.model.widened import in_float32

SAMPLE_TOKENS = 24
_SHORT = 7
"""In place of longer windows and the like while paging is compared: the sample leaves them."""
_LENGTHS = ("sliding_window", "attention_chunk_size", "floor_scale")
"""What models and their parts call them."""
TOLERANCE = 1e-4
"""Relative error of logits in float32. Those of models with nothing in common differ by 1.4."""


def sample(vocab_size: int, num_tokens: int = SAMPLE_TOKENS) -> list[int]:
    """Tokens of a short sequence, or of so many: as different as they can be."""
    return torch.arange(num_tokens).mul(7919).add(11).remainder(vocab_size).tolist()


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


def rounding_error(found: Tensor, expected: Tensor, has_experts: bool) -> float:
    """The relative error of logits of which one or both are rounded.

    Among experts that are nearly alike a rounding may decide, and those tokens, and some that see
    them, are off by much: there it is that of the quarter of all tokens that are least off.
    """
    if not has_experts:
        return relative_error(found, expected)
    off = (found.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
    return float(off.quantile(0.25))


@torch.inference_mode()
def checked_logits(decoder: EagerDecoder, ids: list[int], block_size: int) -> Tensor:
    """What the model computes for a sequence, in float32: [num_tokens, vocab_size].

    Raises `UnsupportedModel` if it is not what comes of paging its attention.
    """
    with in_float32(decoder.model):
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
