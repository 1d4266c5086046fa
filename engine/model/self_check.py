"""Whether a model that is served from blocks computes what the model itself does.

Whatever a family does that paging does not know of (an unusual mask, a position bias) shows on one
short sequence, at start, instead of as subtly wrong answers. Arithmetic must not hide it: the
model's own layers are compared in float32, in which nothing but order of summation differs.

The same weights, code and machine compute the same again: what was right is kept in the cache
folder, and a start that finds it there is ready earlier, as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers
from torch import Tensor, nn

from engine.api import UnsupportedModel
from engine.batch.batch import Batch, pack
from engine.config import EngineConfig
from engine.model.fingerprint import model_fingerprint, weight_files
from engine.model.kernel_paths import described, known_choice, machine_name
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.layout import PageLayout
from engine.model.widened import in_float32
from engine.system import cache_files
from kernels.types import StateRuns

SAMPLE_TOKENS = 24
SHORT = 7
"""In place of longer windows and the like while layers are compared: the sample leaves them."""
_LENGTHS = ("sliding_window", "attention_chunk_size", "floor_scale")
"""What models and their parts call them."""
TOLERANCE = 1e-4
"""Relative error of logits in float32. Those of models with nothing in common differ by 1.4."""
_KEPT = "checked_models.json"
_MOST_KEPT = 100
_SOURCES = [Path(__file__).parents[2] / room for room in ("engine", "kernels")]
_decode = msgspec.json.Decoder(dict[str, float]).decode


def sample(vocab_size: int, num_tokens: int = SAMPLE_TOKENS) -> list[int]:
    """Tokens of a short sequence, or of so many: as different as they can be."""
    return torch.arange(num_tokens).mul(7919).add(11).remainder(vocab_size).tolist()


def num_pages_of(ids: list[int], block_size: int, layout: PageLayout) -> int:
    """What `in_parts` takes: blocks of all kinds, and one state."""
    return -(-len(ids) // block_size) * layout.num_columns + layout.state_pages


def in_parts(
    ids: list[int], block_size: int, device: torch.device, layout: PageLayout
) -> list[Batch]:
    """One sequence in two chunks, over the first pages in reverse order, with a logit row for each
    token.
    """
    num_pages = num_pages_of(ids, block_size, layout)
    every = np.arange(num_pages, dtype=np.int32)[::-1]
    state = torch.from_numpy(every[None, : layout.state_pages].copy())
    pages = every[layout.state_pages :].reshape(layout.num_columns, -1)
    split = len(ids) // 2
    parts = []
    for start, count in ((0, split), (split, len(ids) - split)):
        batch = pack([(ids, start, count, pages)], range(count), block_size, device)
        before = state if start else torch.full_like(state, -1)
        runs = StateRuns(torch.tensor([0, count], dtype=torch.int32), before, state)
        parts.append(replace(batch, states=runs if layout.state_pages else None))
    return parts


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Of logits, over all that are given."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def rounding_error(found: Tensor, expected: Tensor, has_experts: bool) -> float:
    """The relative error of logits of which one or both are rounded.

    Among experts that are nearly alike a rounding may decide, and those tokens, and some that see
    them, are off by much: there it is that of the tenth of all tokens that are least off.
    """
    if not has_experts:
        return relative_error(found, expected)
    off = (found.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
    return float(off.quantile(0.1))


@torch.inference_mode()
def checked_logits(decoder: EagerDecoder, ids: list[int], block_size: int) -> Tensor:
    """What the model computes for a sequence, in float32: [num_tokens, vocab_size].

    Raises `UnsupportedModel` if it is not what comes of paging its attention.
    """
    with in_float32(decoder.model, decoder.exact):
        own = decoder.own_logits(ids)
        if decoder.has_states:
            decoder.watch()  # some are of the weights' type
        paged = _paged_logits(decoder, ids, block_size)
    if decoder.has_states:
        decoder.watch()
    if own.isnan().any():
        raise UnsupportedModel(
            f"what {type(decoder.model).__name__} computes are no numbers: its weights are broken"
        )
    error = relative_error(paged, own)
    if not error < TOLERANCE:
        raise UnsupportedModel(
            f"{type(decoder.model).__name__} computes something else when its attention is paged "
            f"(relative error of logits {error:.2g})"
        )
    return own


@contextmanager
def shortened(decoder: EagerDecoder | FusedDecoder) -> Iterator[None]:
    """Let nothing that computes be longer than the sample: windows, chunks and the like."""
    if isinstance(decoder, FusedDecoder):
        with decoder.windows_of(SHORT):
            yield
        return
    calls, long = decoder.calls, _long_lengths(decoder.model)
    try:
        for owner, name, _ in long:
            setattr(owner, name, SHORT)
        if long:
            decoder.watch()
        yield
    finally:
        for owner, name, length in long:
            setattr(owner, name, length)
        decoder.calls = calls


def _long_lengths(model: nn.Module) -> list[tuple[Any, str, float]]:
    """Whose they are, what they are called there, and how long they are."""
    owners: dict[int, Any] = {}
    for module in model.modules():
        owners |= {id(one): one for one in (module, getattr(module, "config", None))}
    named = [(one, name, _length(one, name)) for one in owners.values() for name in _LENGTHS]
    return [found for found in named if found[2] > SHORT]


def _paged_logits(decoder: EagerDecoder, ids: list[int], block_size: int) -> Tensor:
    device = decoder.model.device
    pages = decoder.layout().pages(block_size, torch.float32)
    num_pages = num_pages_of(ids, block_size, pages)
    caches = pages.caches(torch.zeros(num_pages, pages.page_size, device=device))
    parts = in_parts(ids, block_size, device, pages)
    return torch.cat([decoder.forward(part, caches) for part in parts])


def _length(owner: Any, name: str) -> float:
    length = getattr(owner, "__dict__", {}).get(name)
    return length if isinstance(length, int | float) else 0


class Kept:
    """How far a model's logits were off when they were found right, as it is loaded now."""

    def __init__(
        self, config: EngineConfig, device: torch.device, dtype: torch.dtype, by_kinds: bool
    ) -> None:
        folder = config.cache_dir if weight_files(Path(config.model_path)) else None
        self._store = None if folder is None else Path(folder) / _KEPT
        self._name = "" if folder is None else _name_of(config, device, dtype, by_kinds)

    @property
    def error(self) -> float | None:
        """`None` if this is not known to be right."""
        return self._all().get(self._name)

    def keep(self, error: float) -> None:
        """Of logits that are right."""
        latest = list(self._all().items())[1 - _MOST_KEPT :]
        cache_files.save(self._store, dict(latest) | {self._name: error})

    def _all(self) -> dict[str, float]:
        return cache_files.load(self._store, _decode) or {}


def _name_of(config: EngineConfig, device: torch.device, dtype: torch.dtype, by_kinds: bool) -> str:
    """All that logits depend on, as one word."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else machine_name(config)
    choice = known_choice(config)
    parts = [
        *(model_fingerprint(config, dtype).hex(), name, _code()),
        *(choice and described(choice), device.type, by_kinds),
        *(config.block_size, config.batch_invariant, config.max_context_tokens),
    ]
    digest = blake2b(repr(parts).encode(), digest_size=16)
    for file in sorted(Path(config.model_path).glob("*.json")):  # some say there how codes are read
        digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _code() -> str:
    """What computes."""
    digest = blake2b(f"{torch.__version__} {transformers.__version__}".encode(), digest_size=16)
    files = (
        file for folder in _SOURCES for kind in ("*.py", "*.so") for file in folder.rglob(kind)
    )
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
