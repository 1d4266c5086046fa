"""A `transformers` model as it is, except that its attention reads and writes KV blocks.

The model keeps its definition and weights; its attention is replaced through `AttentionInterface`.
This serves every architecture that routes its attention that way, a little slower than
`engine.model.layers.fused` serves those that it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from engine.api import UnsupportedModel
from engine.batch.batch import Batch
from engine.model.checkpoints.coded_linear import without_weights
from engine.model.errors import BROKEN, lacks_memory
from engine.model.layers.eager import latent
from engine.model.layers.eager.counting import count_packed
from engine.model.layers.eager.filling import filled
from engine.model.layers.eager.recurrent import StateLayers
from engine.model.layers.eager.state_kernels import exact_decays
from engine.model.layers.layout import AttentionCall, AttentionLayout
from engine.model.layers.linear_places import Places, own_places
from engine.model.layers.rotary import split_by_length
from engine.model.widened import Changes
from kernels.adapters import adapt
from kernels.attention import attend, write_kv
from kernels.types import AdaptedRows, AttentionBatch, LayerCaches

_ATTENTION = "partywall_paged"
_PLACES: Final = 1 << 40
"""More than any sequence has."""
_WATCHED = "partywall_watched"
"""As the attention is called while one looks on what it is asked, masks included."""

Sight = tuple[int | None, int | None]
"""The window and the local chunk that a query sees keys of; `None` for what does not limit it."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What the attention of a running forward pass needs beside its tensors."""

    positions: Tensor  # [num_tokens]
    caches: LayerCaches
    columns: list[AttentionBatch]
    calls: list[AttentionCall]
    places: dict[int, int]
    """Of the layers that attend, as the model counts them, which of these they are."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """What has been seen of a forward pass that is watched."""

    calls: dict[int, AttentionCall] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    """Of the layers that have some of their own."""
    masks: list[tuple[Tensor, Sight]] = field(default_factory=list)
    """What stands for each mask, and what it leaves open."""

    def reads(self, layer: int, key: Tensor) -> int | None:
        """The other layer that has made `key`, the very same tensor, if one has."""
        owner = next((one for one, known in self.keys.items() if known is key), layer)
        self.keys.setdefault(owner, key)
        return None if owner == layer else owner

    def sight(self, mask: Tensor | None, window: int | None) -> Sight:
        """Of a layer: its mask's, as some families have it nowhere else, or the window it asks for.

        Raises `UnsupportedModel` for a mask that the layer has made of its own.
        """
        if mask is None:
            return window, None
        for known, sight in self.masks:
            if known is mask:
                return sight
        raise UnsupportedModel("layers that make attention masks of their own are not supported")


_step: ContextVar[_Step] = ContextVar("step")
_watch: ContextVar[_Watch] = ContextVar("watch")


class EagerDecoder:
    """Packed tokens through the model's own modules."""

    def __init__(self, model: PreTrainedModel, max_context_tokens: int | None = None) -> None:
        """Take over `model`, for contexts of up to `max_context_tokens`, or as long as its own.

        Raises `UnsupportedModel` if its attention cannot be paged, or its positions depend on more
        than the sequence that they are in.
        """
        AttentionInterface.register(_ATTENTION, _paged_attention)
        AttentionInterface.register(_WATCHED, _watched_attention)
        AttentionMaskInterface.register(_WATCHED, _watched_mask)
        latent.keep_latents(model, (_ATTENTION, _WATCHED))
        self.model = model.eval()
        count_packed(model, _packed_positions)
        self._rotary = split_by_length(model, max_context_tokens)
        self._states = StateLayers(model)
        self.calls: list[AttentionCall] = []
        """What each layer that attends asks of its attention."""
        self.linears: Sequence[Places] = ({},)
        """What adapters may change; of several ranks each changes all of it."""
        self.watch()

    def layout(self, by_kinds: bool = False) -> AttentionLayout:
        """What its layers keep; for `by_kinds` see there."""
        return AttentionLayout(tuple(self.calls), by_kinds, self._states.shapes)

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state of fixed size."""
        return bool(self._states.shapes)

    def forward(self, batch: Batch, caches: LayerCaches) -> Tensor:
        """Compute a packed batch, writing its KV to `caches`.

        Returns the logits of `batch.logit_rows`: [num_logit_rows, vocab_size].
        """
        if batch.states is None or not batch.states.batch_invariant:
            return self._computed(batch, caches)
        with filled(batch) as whole:
            return self._computed(whole, caches)

    def _computed(self, batch: Batch, caches: LayerCaches) -> Tensor:
        step = _Step(batch.positions, caches, batch.columns, self.calls, self._places)
        token = _step.set(step)
        if self._rotary is not None:
            self._rotary.is_long = batch.is_long
        try:
            starts = batch.attention.query_starts
            with self._states.running(batch.states, starts, caches), self._adapting(batch.adapted):
                output = self.model(
                    **self._inputs(batch),
                    position_ids=_places(batch),
                    use_cache=False,
                    logits_to_keep=batch.logit_rows,
                )
        finally:
            _step.reset(token)
        logits: Tensor = output.logits[0]
        return logits

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Of packed tokens: these, or their embeddings with what is seen in place of some."""
        if batch.seen is None:
            return {"input_ids": batch.token_ids[None]}
        rows: Tensor = self.model.get_input_embeddings()(batch.token_ids)
        inputs = {"inputs_embeds": rows.index_copy(0, batch.seen.rows, batch.seen.values)[None]}
        config, inner = self.model.config, self.model.base_model
        if getattr(config, "hidden_size_per_layer_input", 0):  # of tokens, beside embeddings
            ids = batch.token_ids.index_fill(0, batch.seen.rows, config.pad_token_id)
            inputs["per_layer_inputs"] = inner.get_per_layer_inputs(ids[None], None)
        return inputs

    num_places: Final = _PLACES
    """By which tokens are turned that stand for no picture."""

    @property
    def turns_by_parts(self) -> bool:
        """Whether its tokens may be turned by places of three parts."""
        return any(hasattr(module, "mrope_section") for module in self.model.modules())

    @contextmanager
    def _adapting(self, adapted: Sequence[AdaptedRows]) -> Iterator[None]:
        """Let linear layers give what adapters change in them, too."""
        hooks = [
            self.model.get_submodule(name).register_forward_hook(_adapts(place.product, adapted))
            for name, place in (self.linears[0].items() if adapted else ())
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def exact(self) -> Changes:
        """What makes narrow buffers what they are in float32."""
        return exact_decays(self.model)

    @property
    def has_experts(self) -> bool:
        """Whether any layer routes its tokens."""
        # So `transformers` marks modules of experts.
        return any(hasattr(module, "is_transposed") for module in self.model.modules())

    @property
    def limits_prompts(self) -> bool:
        """See `EngineInfo.limits_prompts`."""
        limits = (getattr(one, "time_step_limit", None) for one in self.model.modules())
        return any(one is not None and tuple(one) != (0.0, math.inf) for one in limits)

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
        return self.own_copies(token_ids, 1)[0]

    @torch.inference_mode()
    def own_copies(self, token_ids: list[int], num_copies: int) -> Tensor:
        """What the model computes for copies of one sequence, side by side: [num_copies,
        num_tokens, vocab_size]. See `own_logits`.
        """
        rows = torch.tensor([token_ids] * num_copies, device=self.model.device)
        self.model.set_attn_implementation("eager")
        logits: Tensor = self.model(input_ids=rows, use_cache=False).logits
        self.model.set_attn_implementation(_ATTENTION)
        return logits

    @torch.inference_mode()
    def watch(self) -> None:
        """Learn by one forward pass what each layer asks of its attention, as it is now."""
        watch, called = _Watch(), set[str]()
        token = _watch.set(watch)
        hooks = [
            module.register_forward_hook(lambda *_, name=name: called.add(name))
            for name, module in self.model.named_modules()
        ]
        try:
            self.model.set_attn_implementation(_WATCHED)
            one = torch.zeros((1, 1), dtype=torch.long, device=self.model.device)
            with without_weights(), self._states.watched():
                self.model(input_ids=one, position_ids=one, use_cache=False)
        except (*BROKEN, ValueError) as error:
            if lacks_memory(error):
                raise
            raise UnsupportedModel(
                f"{type(self.model).__name__} fails on a single token: {error}"
            ) from error
        finally:
            _watch.reset(token)
            self.model.set_attn_implementation(_ATTENTION)
            for hook in hooks:
                hook.remove()
        self.linears = (own_places(self.model, called),)
        layers = sorted(watch.calls)
        if not self.has_states and (not layers or layers != list(range(len(layers)))):
            raise UnsupportedModel(
                f"{type(self.model).__name__} has layers that do not attend through transformers' "
                "AttentionInterface"
            )
        self._places = {layer: place for place, layer in enumerate(layers)}
        calls = [watch.calls[layer] for layer in layers]
        self.calls = [
            call if call.reads is None else replace(call, reads=self._places[call.reads])
            for call in calls
        ]


def _adapts(product: int, adapted: Sequence[AdaptedRows]) -> Callable[..., None]:
    """Of a linear layer a hook that adds to its outputs, which are of packed tokens."""

    def hook(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        adapt(inputs[0].flatten(0, -2), output.flatten(0, -2), adapted, product)

    return hook


def _places(batch: Batch) -> Tensor:
    """By what packed tokens are turned: [1, num_tokens], or [3, 1, num_tokens] where some have
    places of three parts.
    """
    if batch.seen is None or batch.seen.turned is None:
        return batch.positions[None]
    behind = batch.positions - _PLACES
    is_turned = behind >= 0
    places = batch.positions.repeat(3, 1)
    places[:, is_turned] = batch.seen.turned[:, behind[is_turned]]
    return places[:, None]


def _packed_positions() -> Tensor | None:
    """Of the tokens of a running forward pass, if it is one of packed tokens."""
    step = _step.get(None)
    return None if step is None else step.positions


def _watched_mask(
    mask_function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    local_size: int | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Tensor:
    """The `AttentionMaskInterface` function of a pass that is watched: no mask, but a sign for one.

    `mask_function` tells of (sequence, head, position of a query, position of a key) whether one
    sees the other. Raises `UnsupportedModel` for masks that paging does not know.
    """
    size = 1 if local_size is None else local_size
    query = torch.tensor(2 * size + 1, device=device)
    zero, keys = torch.zeros_like(query), torch.arange(2 * size + 3, device=device)
    sees, earlier = mask_function(zero, zero, query, keys), keys <= query
    sight: Sight
    if torch.equal(sees, earlier & ((keys > query - size) | (local_size is None))):
        sight = local_size, None
    elif torch.equal(sees, earlier & (keys // size == query // size)):
        sight = None, local_size
    else:
        raise UnsupportedModel("attention that is not causal is not supported")
    sign = torch.zeros(1, 1, 1, 1)
    _watch.get().masks.append((sign, sight))
    return sign


def _watched_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The `AttentionInterface` function of a pass that is watched; for shapes see below.

    Raises `UnsupportedModel` for what cannot be paged.
    """
    if position_bias is not None:
        raise UnsupportedModel(f"{type(module).__name__} needs position_bias")
    layer_index = getattr(module, "layer_idx", None)
    if layer_index is None or key.shape != value.shape:
        raise UnsupportedModel("keys and values must come in layers and have one shape")
    value_dim, watch = latent.value_dim(module), _watch.get()
    window, chunk = watch.sight(attention_mask, sliding_window)
    watch.calls[layer_index] = AttentionCall(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=key.shape[3],
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        sliding_window=window,
        softcap=softcap,
        chunk=chunk,
        has_sinks=s_aux is not None,
        reads=watch.reads(layer_index, key),
        value_dim=value_dim,
    )
    attended = torch.zeros_like(query[0].transpose(0, 1))
    if value_dim is not None:
        attended = latent.expand(module, attended.new_zeros(*attended.shape[:2], value_dim))
    return attended[None], None


def _paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    s_aux: Tensor | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """The `AttentionInterface` function, for packed tokens.

    `query`, `key` and `value` are [1, heads, tokens, head_dim], or latents as
    `engine.model.layers.eager.latent` hands them on; the result is [1, tokens, heads, head_dim].
    `s_aux`, [heads], are sinks. There is never a mask: the block tables say what a token may see.
    """
    step = _step.get()
    layer = step.places[module.layer_idx]
    call, kv = step.calls[layer], step.caches.views[layer]
    batch, has_latents = step.columns[step.caches.columns[layer]], call.value_dim is not None
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if call.reads is None:
        write_kv(k, None if has_latents else v, kv, batch.slots)
    output = attend(
        latent.absorb(module, q) if has_latents else q,
        kv,
        batch,
        scale=call.scale,
        sliding_window=call.sliding_window,
        softcap=call.softcap,
        chunk=call.chunk,
        sinks=None if s_aux is None else s_aux.float(),
        value_dim=call.value_dim,
    )
    return (latent.expand(module, output) if has_latents else output)[None], None
