"""What the decoder families have in common, and where they differ, read from a loaded model.

`describe` turns a `transformers` model into a neutral description: its own modules give weights,
epsilons, activation, rotary tables and scales. It knows Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma2
and Gemma3 (text) by the classes of their modules, and guesses nothing: whatever is not exactly as
expected makes a model `Unfamiliar`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from engine.model.checkpoints.coded_linear import CodedLinear, Product
from engine.model.layers.eager import AttentionCall
from kernels.types import Activation, LayerOptions, Norm, Rotation

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_FIXED_ROTATIONS = {"default", "linear", "llama3", "yarn", "dynamic"}
"""Kinds of rotary embedding whose angles depend on the position alone, up to the model's own
context; dynamic ones only change behind it."""


@dataclass(frozen=True, slots=True)
class _Family:
    """How a family differs from Llama."""

    head_norms: bool = False
    """Queries and keys are normed by head."""
    offset_norms: bool = False
    """Norms multiply by 1 + weight."""
    update_norms: bool = False
    """What attention and feed-forward give is normed before it is added to the residual stream."""
    capped_logits: bool = False
    """Logits may have a soft cap."""


_FAMILIES = {
    "Llama": _Family(),
    "Mistral": _Family(),
    "Qwen2": _Family(),
    "Qwen3": _Family(head_norms=True),
    "Gemma": _Family(offset_norms=True),
    "Gemma2": _Family(offset_norms=True, update_norms=True, capped_logits=True),
    "Gemma3": _Family(head_norms=True, offset_norms=True, update_norms=True, capped_logits=True),
}


class Unfamiliar(Exception):
    """The model is not of a known family, or differs from it; the message says how."""


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One decoder layer; its modules still hold the weights."""

    options: LayerOptions
    qkv: list[Product]
    out: Product
    gate_up: list[Product]
    down: Product


@dataclass(frozen=True, slots=True)
class Description:
    """A decoder-only model as `engine.model.layers.fused` runs it."""

    embedding: nn.Embedding
    embedding_scale: float
    layers: list[LayerDescription]
    activation: Activation
    norm: Norm
    head: Product
    softcap: float | None
    """Of the logits."""


def describe(
    model: PreTrainedModel, calls: Sequence[AttentionCall], max_positions: int | None = None
) -> Description:
    """Read `model`, whose layers were seen to ask `calls` of their attention.

    The rotary tables end where the model's contexts do, or at `max_positions`. Raises `Unfamiliar`.
    """
    name = type(model).__name__.removesuffix("ForCausalLM")
    if name not in _FAMILIES or not type(model).__module__.startswith("transformers.models."):
        raise Unfamiliar(f"{type(model).__name__} is not a known family")
    num_positions: int = model.config.max_position_embeddings
    if max_positions is not None:
        num_positions = min(num_positions, max_positions)
    return _Reader(model, name).description(calls, num_positions)


class _Reader:
    """Reads one model; every method raises `Unfamiliar` for what is not as the family has it."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._model: Any = model
        self._name = name
        self._family = _FAMILIES[name]

    def description(self, calls: Sequence[AttentionCall], num_positions: int) -> Description:
        _require_children(self._model, {"model", "lm_head"})
        inner = self._model.model
        _require_children(inner, {"embed_tokens", "layers", "norm", "rotary_emb"})
        if len(inner.layers) != len(calls):
            raise Unfamiliar(f"{len(inner.layers)} layers, of which {len(calls)} attend")
        rotations = self._rotations(len(calls), num_positions)
        layers = list(map(self._layer, inner.layers, calls, rotations))
        return Description(
            embedding=inner.embed_tokens,
            embedding_scale=self._embedding_scale(inner.embed_tokens),
            layers=layers,
            activation=_the_only({self._activation(layer.mlp.act_fn) for layer in inner.layers}),
            norm=self._norm(inner.norm),
            head=_linear(self._model.lm_head),
            softcap=self._model.config.final_logit_softcapping
            if self._family.capped_logits
            else None,
        )

    def _layer(self, layer: Any, call: AttentionCall, rotation: Rotation) -> LayerDescription:
        self._require_class(layer, "DecoderLayer")
        norms = {"input_layernorm", "post_attention_layernorm"}
        if self._family.update_norms:
            norms |= {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
        _require_children(layer, {"self_attn", "mlp"} | norms)
        attention, mlp = layer.self_attn, layer.mlp
        self._require_class(attention, "Attention")
        self._require_class(mlp, "MLP")
        head_norms = {"q_norm", "k_norm"} if self._family.head_norms else set()
        _require_children(attention, {"q_proj", "k_proj", "v_proj", "o_proj"} | head_norms)
        _require_children(mlp, {"gate_proj", "up_proj", "down_proj", "act_fn"})
        if not attention.is_causal:
            raise Unfamiliar("attention looks at later tokens")
        if call.chunk is not None or call.has_sinks:
            raise Unfamiliar("attention with sinks or within local chunks")
        if 2 * rotation.cos.shape[1] != call.head_dim:
            raise Unfamiliar("only a part of each head is rotated")
        after_attention = layer.post_attention_layernorm
        options = LayerOptions(
            num_heads=call.num_heads,
            num_kv_heads=call.num_kv_heads,
            scale=call.scale,
            sliding_window=call.sliding_window,
            softcap=call.softcap,
            rotation=rotation,
            before_attention=self._norm(layer.input_layernorm),
            after_attention=self._norm(after_attention) if self._family.update_norms else None,
            before_mlp=self._norm(
                layer.pre_feedforward_layernorm if self._family.update_norms else after_attention
            ),
            after_mlp=self._norm(layer.post_feedforward_layernorm)
            if self._family.update_norms
            else None,
            query_norm=self._norm(attention.q_norm) if head_norms else None,
            key_norm=self._norm(attention.k_norm) if head_norms else None,
        )
        return LayerDescription(
            options=options,
            qkv=[_linear(part) for part in (attention.q_proj, attention.k_proj, attention.v_proj)],
            out=_linear(attention.o_proj),
            gate_up=[_linear(mlp.gate_proj), _linear(mlp.up_proj)],
            down=_linear(mlp.down_proj),
        )

    def _require_class(self, module: nn.Module, role: str) -> None:
        kind = type(module)
        if kind.__name__ != self._name + role or kind.__module__ != type(self._model).__module__:
            raise Unfamiliar(f"{kind.__name__} in place of {self._name}{role}")

    def _norm(self, module: Any) -> Norm:
        self._require_class(module, "RMSNorm")
        if self._family.offset_norms:
            return Norm(module.weight.detach().float() + 1, module.eps)
        return Norm(module.weight.detach().clone(), module.variance_epsilon)

    def _embedding_scale(self, module: Any) -> float:
        if type(module) is nn.Embedding and not self._family.offset_norms:
            return 1.0
        self._require_class(module, "TextScaledWordEmbedding")
        return float(module.embed_scale.to(module.weight.dtype))

    def _activation(self, module: nn.Module) -> Activation:
        for name, activation in _ACTIVATIONS.items():
            if type(module) is type(ACT2FN[name]):
                return activation
        raise Unfamiliar(f"the activation is {type(module).__name__}")

    def _rotations(self, num_layers: int, num_positions: int) -> list[Rotation]:
        """Each layer's tables, which layers of a kind share."""
        module = self._model.model.rotary_emb
        self._require_class(module, "RotaryEmbedding")
        types = module.rope_type
        by_kind = isinstance(types, dict)
        unknown = (set(types.values()) if by_kind else {types}) - _FIXED_ROTATIONS
        if unknown:
            raise Unfamiliar(f"rotary embedding of type {', '.join(unknown)}")
        if not by_kind:
            return [self._rotation(num_positions)] * num_layers
        tables = {kind: self._rotation(num_positions, layer_type=kind) for kind in types}
        return [tables[kind] for kind in self._model.config.layer_types[:num_layers]]

    @torch.no_grad()
    def _rotation(self, num_positions: int, **options: str) -> Rotation:
        device = self._model.device
        positions = torch.arange(num_positions, device=device)[None]
        like = torch.empty(0, dtype=torch.float32, device=device)
        cos, sin = self._model.model.rotary_emb(like, positions, **options)
        half = cos.shape[-1] // 2
        if not (torch.equal(cos[..., :half], cos[..., half:]) and cos.dtype == torch.float32):
            raise Unfamiliar("rotary tables of two halves that differ")
        return Rotation(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())


def _require_children(module: nn.Module, names: set[str]) -> None:
    found = {name for name, _ in module.named_children()}
    if found != names:
        odd = ", ".join(sorted(found ^ names))
        raise Unfamiliar(f"{type(module).__name__} with or without {odd}")


def _linear(module: Any) -> Product:
    if type(module) not in (nn.Linear, CodedLinear):
        raise Unfamiliar(f"a product of class {type(module).__name__}")
    product: Product = module
    return product


def _the_only(values: set[Activation]) -> Activation:
    if len(values) != 1:
        raise Unfamiliar("layers with different activations")
    return values.pop()
