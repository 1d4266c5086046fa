"""How each known family differs from Llama, in data: names of modules, norms, scales, rotation.

`engine.model.layers.families` reads models by it. A family is known by the name of its causal
language model, and its modules have that name before their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Norms:
    """A layer's norms, by their names; `None` where there is none.

    A feed-forward network behind the norm that is before attention stands beside attention.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def names(self) -> set[str]:
        """Of all norms that there are."""
        all_names = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return {name for name in all_names if name is not None}

    @property
    def is_parallel(self) -> bool:
        """Whether attention and feed-forward network see the same."""
        return self.before_attention == self.before_mlp


_AROUND = Norms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_BEHIND = Norms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)
_BESIDE = Norms(before_mlp="input_layernorm")


def _always(_: Any) -> bool:
    return True


def _where_it_says(attention: Any) -> bool:
    return bool(attention.use_rope)


def _in_windows(attention: Any) -> bool:
    return attention.sliding_window is not None


def _in_windows_if_there_are_any(attention: Any) -> bool:
    return attention.sliding_window is None or bool(attention.is_sliding)


@dataclass(frozen=True, slots=True)
class Family:
    """How a family differs from Llama."""

    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Three products, or one for all."""
    out: str = "o_proj"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    """Two products, or one for both."""
    is_plain: bool = False
    """Nothing is gated: what is called `gate_up` is one product, before the activation."""
    down: str = "down_proj"
    activation: str = "act_fn"
    norms: Norms = Norms()
    last_norm: str = "norm"
    norm: str | None = "RMSNorm"
    """The class of norms, behind the family's name; `None`: torch's own `LayerNorm`."""
    offset_norms: bool = False
    """Norms multiply by 1 + weight."""
    head_norms: bool = False
    """Queries and keys are normed by head."""
    joint_norms: bool = False
    """Queries are normed over all heads together, and so are keys."""
    rotates: Callable[[Any], bool] = _always
    """Whether a layer's attention, which is given, turns queries and keys."""
    is_paired: bool = False
    """Neighbouring dimensions of a head are turned together, not those of its two halves."""
    scaled_queries: bool = False
    """Queries are scaled by their positions, but in contexts of the model's original length."""
    scaled_embedding: bool = False
    """The embedding scales what it gives."""
    multipliers: bool = False
    """Embeddings and updates are multiplied, and logits divided, by factors of the model."""
    logit_scale: bool = False
    """Logits are multiplied by a factor of the model."""
    capped_logits: bool = False
    """Logits may have a soft cap."""


_FUSED_GATE: dict[str, Any] = {"gate_up": ("gate_up_proj",), "activation": "activation_fn"}
_UP_ALONE: dict[str, Any] = {"gate_up": ("up_proj",), "is_plain": True}
_GEMMA: dict[str, Any] = {"offset_norms": True, "scaled_embedding": True}
_CAPPED: dict[str, Any] = _GEMMA | {"capped_logits": True}
_COHERE: dict[str, Any] = {
    **{"norm": "LayerNorm", "norms": _BESIDE},
    **{"is_paired": True, "logit_scale": True},
}

FAMILIES = {
    "Arcee": Family(**_UP_ALONE),
    "Cohere": Family(**_COHERE),
    "Cohere2": Family(**_COHERE, rotates=_in_windows),
    "Cwm": Family(),
    "Ernie4_5": Family(is_paired=True),
    "Exaone4": Family(norms=_BEHIND, head_norms=True, rotates=_in_windows_if_there_are_any),
    "Gemma": Family(**_GEMMA),
    "Gemma2": Family(**_CAPPED, norms=_AROUND),
    "Gemma3": Family(**_CAPPED, norms=_AROUND, head_norms=True),
    "Glm": Family(**_FUSED_GATE, is_paired=True),
    "Glm4": Family(
        **_FUSED_GATE,
        is_paired=True,
        norms=Norms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
    "Granite": Family(multipliers=True),
    "Helium": Family(is_paired=True),
    "Jais2": Family(**_UP_ALONE, norm=None),
    "Llama": Family(),
    "Ministral": Family(),
    "Ministral3": Family(scaled_queries=True),
    "Mistral": Family(),
    "Nemotron": Family(**_UP_ALONE, norm="LayerNorm1P", offset_norms=True),
    "Olmo2": Family(norms=_BEHIND, joint_norms=True),
    "Olmo3": Family(norms=_BEHIND, joint_norms=True),
    "Phi": Family(
        out="dense",
        gate_up=("fc1",),
        is_plain=True,
        down="fc2",
        activation="activation_fn",
        norms=_BESIDE,
        last_norm="final_layernorm",
        norm=None,
    ),
    "Phi3": Family(**_FUSED_GATE, qkv=("qkv_proj",)),
    "Qwen2": Family(),
    "Qwen3": Family(head_norms=True),
    "SeedOss": Family(),
    "SmolLM3": Family(rotates=_where_it_says),
    "StableLm": Family(norm=None),
    "Starcoder2": Family(
        gate_up=("c_fc",), is_plain=True, down="c_proj", activation="act", norm=None
    ),
    "VaultGemma": Family(**_CAPPED, norms=Norms(before_mlp="pre_feedforward_layernorm")),
}
"""By the name of their causal language model, without `ForCausalLM`."""
