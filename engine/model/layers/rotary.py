"""Rotary factors that depend on a sequence's length, chosen for each token of a batch.

`transformers` looks at the largest position of a whole batch. With "longrope" (Phi-3 and Phi-4-mini
with 128k tokens) that gives everyone the factors for long sequences beside a single long one. Here
each token is rotated as its own sequence asks. A sequence that grows beyond the border is computed
again from its first token, as `generate()` does; `engine.blocks.table` keeps the KV of both apart.

"dynamic" factors change behind the model's own context, which no request gets past.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.api import UnsupportedModel

_TYPE = "longrope"
_KNOWN = {"Phi3RotaryEmbedding"}
"""Whose two sets of factors differ in nothing but the inverse frequencies, and whose `generate()`
computes a sequence again that comes to need the other set."""


class LengthRotary(nn.Module):
    """In place of a model's rotary embedding: two sets of angles, of which each token takes one."""

    def __init__(self, own: Any, switch: int) -> None:
        """Take over `own`, whose factors change in sequences of more than `switch` tokens."""
        super().__init__()
        self.switch = switch
        self.is_long: Tensor | None = None  # [num_tokens] bool, of the batch to come; None: no
        long, _ = ROPE_INIT_FUNCTIONS[_TYPE](own.config, own.inv_freq.device, seq_len=switch + 1)
        self.short = _fixed(own, own.original_inv_freq)
        self.long = _fixed(own, long)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of packed tokens: [1, num_tokens, rotated dimensions] each."""
        short: tuple[Tensor, Tensor] = self.short(x, position_ids)
        if self.is_long is None:
            return short
        cos, sin = self.long(x, position_ids)
        is_long = self.is_long[None, :, None]
        return torch.where(is_long, cos, short[0]), torch.where(is_long, sin, short[1])


def split_by_length(model: PreTrainedModel, max_context_tokens: int | None) -> LengthRotary | None:
    """Put a `LengthRotary` into `model` if contexts can be so long that its factors change.

    Raises `UnsupportedModel` if they change in a way that is not known.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if _TYPE in _types(getattr(module, "rope_type", None))
    ]
    if not found:
        return None
    config: Any = model.config.get_text_config()
    switch = int(config.rope_parameters["original_max_position_embeddings"])
    if min(max_context_tokens or math.inf, config.max_position_embeddings) <= switch:
        return None
    name, own = found[0]
    if len(found) > 1 or type(own).__name__ not in _KNOWN:
        raise UnsupportedModel(
            f"rotary factors of type {_TYPE!r} change in contexts of more than {switch} tokens, in "
            f"a way that is not known of {type(own).__name__}; set max_context_tokens to "
            f"{switch} at most"
        )
    rotary = LengthRotary(own, switch)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, rotary)
    return rotary


def _types(kinds: str | dict[str, str] | None) -> set[str]:
    if isinstance(kinds, dict):
        return set(kinds.values())
    return set() if kinds is None else {kinds}


def _fixed(own: Any, inv_freq: Tensor) -> Any:
    """A copy of `own` that keeps these frequencies, whatever it is asked for."""
    fixed = deepcopy(own)
    fixed.rope_type = "default"
    fixed.inv_freq = inv_freq.to(own.inv_freq.device).clone()
    return fixed
