"""What the decoder families have in common, and where they differ, read from a loaded model.

`describe` turns a `transformers` model into a neutral description: its own modules give weights,
epsilons, activation, rotary tables and scales. It knows the families that
`engine.model.layers.family` lists by the classes of their modules, and guesses nothing: whatever is
not exactly as expected makes a model `Unfamiliar`.

Factors that a family has in many places go into few. Where all updates are multiplied by m before
they are added to the residual stream (Granite), that is described as one of an m-th of the size:
its norms give the same if their epsilons are divided by the square of m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.layers.description import Description, LayerDescription
from engine.model.layers.expected import Classes, Unfamiliar, linear, require_children, the_only
from engine.model.layers.family import FAMILIES
from engine.model.layers.layout import AttentionCall
from engine.model.layers.networks import NetworkReader
from engine.model.layers.rotary import LengthRotary
from kernels.types import LayerOptions, Norm, Rotation

_FIXED_ROTATIONS = {"default", "linear", "llama3", "yarn", "dynamic"}
"""Kinds of rotary embedding whose angles depend on the position alone, up to the model's own
context; dynamic ones only change behind it."""

_ROTATION_BY_LENGTH = "longrope"
"""A kind whose angles are fixed in contexts that are not long, and else a `LengthRotary`'s."""


def describe(
    model: PreTrainedModel, calls: Sequence[AttentionCall], max_positions: int | None = None
) -> Description:
    """Read `model`, whose layers were seen to ask `calls` of their attention.

    The rotary tables end where the model's contexts do, or at `max_positions`. Raises `Unfamiliar`.
    """
    name = type(model).__name__.removesuffix("ForCausalLM")
    if name not in FAMILIES or not type(model).__module__.startswith("transformers.models."):
        raise Unfamiliar(f"{type(model).__name__} is not a known family")
    num_positions: int = model.config.max_position_embeddings
    if max_positions is not None:
        num_positions = min(num_positions, max_positions)
    return _Reader(model, name).description(calls, num_positions)


class _Reader:
    """Reads one model; every method raises `Unfamiliar` for what is not as the family has it."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._model: Any = model
        self._family = FAMILIES[name]
        self._classes = Classes(model, name)
        self._networks = NetworkReader(self._family, self._classes)
        self._stream_scale = 1.0
        """What the residual stream as it is described is to be multiplied by, to be the model's."""

    def description(self, calls: Sequence[AttentionCall], num_positions: int) -> Description:
        family, inner = self._family, self._model.model
        if family.scaled_queries and not self._is_short(num_positions):
            raise Unfamiliar("queries are scaled by their positions")
        if family.unset is not None and getattr(self._model.config, family.unset) is not None:
            raise Unfamiliar(f"{family.unset} is set")
        require_children(self._model, {"model", "lm_head"})
        require_children(inner, {"embed_tokens", "layers", family.last_norm, "rotary_emb"})
        if len(inner.layers) != len(calls):
            raise Unfamiliar(f"{len(inner.layers)} layers, of which {len(calls)} attend")
        if len({(call.num_heads, call.num_kv_heads, call.head_dim) for call in calls}) > 1:
            raise Unfamiliar("layers with heads of different numbers or sizes")
        if family.multipliers:
            self._stream_scale = the_only(layer.residual_multiplier for layer in inner.layers)
        rotations = self._rotations(inner.layers, num_positions)
        layers = list(map(self._layer, inner.layers, calls, rotations))
        rotary = inner.rotary_emb
        return Description(
            embedding=inner.embed_tokens,
            embedding_scale=self._embedding_scale(inner),
            layers=layers,
            activation=the_only(layer.network.activation for layer in layers),
            norm=self._last_norm(getattr(inner, family.last_norm)),
            head=linear(self._model.lm_head),
            softcap=self._model.config.final_logit_softcapping if family.capped_logits else None,
            long_row=rotary.switch if isinstance(rotary, LengthRotary) else None,
        )

    def _layer(self, layer: Any, call: AttentionCall, rotation: Rotation) -> LayerDescription:
        family = self._family
        self._classes.require(layer, "DecoderLayer")
        attention = layer.self_attn
        require_children(layer, {"self_attn"} | self._networks.names(layer) | family.norms.names)
        self._classes.require(attention, "Attention")
        norms = {"q_norm", "k_norm"} if self._has_norms(attention) else set()
        require_children(attention, {*family.qkv, family.out} | norms)
        if not attention.is_causal:
            raise Unfamiliar("attention looks at later tokens")
        if call.chunk is not None or call.has_sinks != family.has_sinks:
            raise Unfamiliar("attention with sinks or within local chunks")
        return LayerDescription(
            options=self._options(layer, call, rotation),
            qkv=[linear(getattr(attention, name)) for name in family.qkv],
            out=linear(getattr(attention, family.out)),
            network=self._networks.network(layer),
            head_order=self._head_order(call.head_dim, rotation),
        )

    def _options(self, layer: Any, call: AttentionCall, rotation: Rotation) -> LayerOptions:
        family, attention = self._family, layer.self_attn

        def norm(name: str | None, of_stream: bool = False) -> Norm | None:
            return None if name is None else self._norm(getattr(layer, name), of_stream)

        pair = None
        if self._has_norms(attention):
            pair = self._norm(attention.q_norm), self._norm(attention.k_norm)
        query_norm, key_norm = pair if pair and not family.joint_norms else (None, None)
        return LayerOptions(
            num_heads=call.num_heads,
            num_kv_heads=call.num_kv_heads,
            scale=call.scale,
            sliding_window=call.sliding_window,
            softcap=call.softcap,
            rotation=rotation,
            before_attention=norm(family.norms.before_attention, of_stream=True),
            after_attention=norm(family.norms.after_attention),
            before_mlp=norm(family.norms.before_mlp, of_stream=True),
            after_mlp=norm(family.norms.after_mlp),
            query_norm=query_norm,
            key_norm=key_norm,
            joint_norms=pair if family.joint_norms else None,
            is_parallel=family.norms.is_parallel,
            is_plain=family.is_plain,
            sinks=attention.sinks.detach().float().clone() if family.has_sinks else None,
        )

    def _has_norms(self, attention: Any) -> bool:
        return self._family.joint_norms or self._family.head_norms(attention)

    def _head_order(self, head_dim: int, rotation: Rotation) -> Tensor | None:
        turned = 2 * rotation.cos.shape[1]
        if turned > head_dim:
            raise Unfamiliar("more is turned than a head has dimensions")
        if not self._family.is_paired or not turned:
            return None
        places = torch.arange(head_dim, device=rotation.cos.device)
        return torch.cat([places[:turned:2], places[1:turned:2], places[turned:]])

    def _norm(self, module: Any, of_stream: bool = False) -> Norm:
        """One `of_stream` has the residual stream before it."""
        family = self._family
        if family.norm is not None:
            self._classes.require(module, family.norm)
        elif type(module) is not nn.LayerNorm:
            raise Unfamiliar(f"{type(module).__name__} in place of LayerNorm")
        weight, bias = module.weight.detach(), getattr(module, "bias", None)
        weight = weight.float() + 1 if family.offset_norms else weight.clone()
        eps: float = module.eps if hasattr(module, "eps") else module.variance_epsilon
        return Norm(
            weight,
            eps / self._stream_scale**2 if of_stream else eps,
            None if bias is None else bias.detach().to(weight.dtype, copy=True),
            centres=family.norm != "RMSNorm",
        )

    def _last_norm(self, module: Any) -> Norm:
        """What the logits are to be multiplied by, it multiplies by before them."""
        norm, scale = self._norm(module, of_stream=True), self._logit_scale()
        if scale == 1:
            return norm
        if norm.bias is not None or self._model.lm_head.bias is not None:
            raise Unfamiliar("logits that are multiplied behind a bias")
        return replace(norm, weight=norm.weight.float() * scale)

    def _logit_scale(self) -> float:
        if self._family.multipliers:
            return 1 / float(self._model.config.logits_scaling)
        return float(self._model.logit_scale) if self._family.logit_scale else 1.0

    def _embedding_scale(self, inner: Any) -> float:
        module = inner.embed_tokens
        if self._family.scaled_embedding:
            self._classes.require(module, "TextScaledWordEmbedding")
            return float(module.embed_scale.to(module.weight.dtype))
        if type(module) is not nn.Embedding:
            raise Unfamiliar(f"an embedding of class {type(module).__name__}")
        multiplier = inner.embedding_multiplier if self._family.multipliers else 1.0
        return float(multiplier / self._stream_scale)

    def _rotations(self, layers: Sequence[Any], num_positions: int) -> list[Rotation]:
        """Each layer's tables, which layers of a kind share."""
        module = self._model.model.rotary_emb
        if isinstance(module, LengthRotary):
            tables = [
                self._rotation(module.short, module.switch),
                self._rotation(module.long, num_positions),
            ]
            return self._turning(layers, [_joined(tables)] * len(layers))
        self._classes.require(module, "RotaryEmbedding")
        types = module.rope_type
        by_kind = isinstance(types, dict)
        unknown = (set(types.values()) if by_kind else {types}) - _FIXED_ROTATIONS
        if unknown and not (types == _ROTATION_BY_LENGTH and self._is_short(num_positions)):
            raise Unfamiliar(f"rotary embedding of type {', '.join(unknown)}")
        if not by_kind:
            return self._turning(layers, [self._rotation(module, num_positions)] * len(layers))
        kinds = self._model.config.layer_types
        by_type = {kind: self._rotation(module, num_positions, layer_type=kind) for kind in types}
        return self._turning(layers, [by_type[kind] for kind in kinds[: len(layers)]])

    def _is_short(self, num_positions: int) -> bool:
        """Whether no sequence is longer than those that the model first learnt from."""
        rope: Any = self._model.config.rope_parameters
        return num_positions <= int(rope["original_max_position_embeddings"])

    def _turning(self, layers: Sequence[Any], rotations: list[Rotation]) -> list[Rotation]:
        """What layers turn by that have these tables; of some families not all layers do."""
        turns = [self._family.rotates(layer.self_attn) for layer in layers]
        pairs = zip(turns, rotations, strict=True)
        return [tables if does else _none_of(tables) for does, tables in pairs]

    @torch.no_grad()
    def _rotation(self, module: Any, num_positions: int, **options: str) -> Rotation:
        device = self._model.device
        positions = torch.arange(num_positions, device=device)[None]
        like = torch.empty(0, dtype=torch.float32, device=device)
        cos, sin = (table[0] for table in module(like, positions, **options))
        return Rotation(self._half(cos), self._half(sin))

    def _half(self, table: Tensor) -> Tensor:
        """What is in a rotary table twice: one half behind the other, or neighbours."""
        first, second = table.tensor_split(2, dim=-1)
        pairs = [(table, table) if self._family.are_halves else (first, second)]
        if self._family.is_paired:
            pairs.append((table[:, ::2], table[:, 1::2]))
        for first, second in pairs:
            if torch.equal(first, second) and table.dtype == torch.float32:
                return first.contiguous()
        raise Unfamiliar("rotary tables of two halves that differ")


def _joined(tables: Sequence[Rotation]) -> Rotation:
    """One table behind the other."""
    return Rotation(
        torch.cat([table.cos for table in tables]), torch.cat([table.sin for table in tables])
    )


def _none_of(tables: Rotation) -> Rotation:
    return Rotation(tables.cos[:, :0], tables.sin[:, :0])
