"""A `transformers` model as it is, except that its attention reads and writes KV blocks.

The model keeps its definition and weights; its attention is replaced through `AttentionInterface`.
This serves every architecture that routes its attention that way, a little slower than
`engine.model.layers.fused` serves those that it knows.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from engine.api import UnsupportedModel
from engine.batch.batch import Batch
from engine.model.checkpoints.coded_linear import without_weights
from engine.model.layers.rotary import split_by_length
from kernels.attention import attend, write_kv

_ATTENTION = "partywall_paged"
_UNKNOWN_TO_PAGING = ("s_aux", "position_bias")
"""Attention options of some families that change the scores in ways the kernels do not know."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer of the model asks of its attention, beside its tensors."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    softcap: float | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What the attention of a running forward pass needs beside its tensors."""

    memory: Tensor  # [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]
    batch: Batch


_step: ContextVar[_Step] = ContextVar("step")
_probe: ContextVar[dict[int, AttentionCall]] = ContextVar("probe")


class EagerDecoder:
    """Packed tokens through the model's own modules."""

    def __init__(self, model: PreTrainedModel, max_context_tokens: int | None = None) -> None:
        """Take over `model`, for contexts of up to `max_context_tokens`, or as long as its own.

        Raises `UnsupportedModel` if its attention cannot be paged, or its positions depend on more
        than the sequence that they are in.
        """
        AttentionInterface.register(_ATTENTION, _paged_attention)
        self.model = model.eval()
        self._rotary = split_by_length(model, max_context_tokens)
        self.calls = self._watch()
        """What each layer asks of its attention."""

    def forward(self, batch: Batch, memory: Tensor) -> Tensor:
        """Compute a packed batch, writing its KV to `memory` (see `PagedModel`).

        Returns the logits of `batch.logit_rows`: [num_logit_rows, vocab_size].
        """
        token = _step.set(_Step(memory, batch))
        if self._rotary is not None:
            self._rotary.is_long = batch.is_long
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

    @property
    def rotary_switch(self) -> int | None:
        """See `EngineInfo.rotary_switch`."""
        return None if self._rotary is None else self._rotary.switch

    @torch.inference_mode()
    def own_logits(self, token_ids: list[int]) -> Tensor:
        """What the model computes for one sequence without paging: [num_tokens, vocab_size].

        With the eager attention, which every family defines in full; others leave out what they
        cannot do.
        """
        row = torch.tensor([token_ids], device=self.model.device)
        self.model.set_attn_implementation("eager")
        logits: Tensor = self.model(input_ids=row, use_cache=False).logits[0]
        self.model.set_attn_implementation(_ATTENTION)
        return logits

    @torch.inference_mode()
    def _watch(self) -> list[AttentionCall]:
        """Learn the KV shape by watching what one forward pass hands to the attention."""
        seen: dict[int, AttentionCall] = {}
        token = _probe.set(seen)
        try:
            self.model.set_attn_implementation(_ATTENTION)
            one = torch.zeros((1, 1), dtype=torch.long, device=self.model.device)
            with without_weights():
                self.model(input_ids=one, position_ids=one, use_cache=False)
        finally:
            _probe.reset(token)
        if sorted(seen) != list(range(len(seen))) or not seen:
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not route its attention through "
                "transformers' AttentionInterface"
            )
        return [seen[layer] for layer in range(len(seen))]


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
    scale = scaling if scaling is not None else q.shape[-1] ** -0.5
    seen = _probe.get(None)
    if seen is not None:
        seen[layer_index] = AttentionCall(
            q.shape[1], k.shape[1], k.shape[2], scale, sliding_window, softcap
        )
        return torch.zeros_like(q)[None], None
    step = _step.get()
    kv = step.memory[:, layer_index]
    write_kv(k, v, kv, step.batch.attention.slots)
    output = attend(
        q,
        kv,
        step.batch.attention,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
    )
    return output[None], None
