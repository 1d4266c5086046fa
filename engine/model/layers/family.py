"""How each known family differs from Llama, in data: names of modules, norms, scales, rotation.

`engine.model.layers.families` reads models by it. A family is known by the name of its causal
language model, and its modules have that name before their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.model.layers.expected import Unfamiliar
from kernels.types import Routing


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


def _never(_: Any) -> bool:
    return False


def _where_it_says(attention: Any) -> bool:
    return bool(attention.use_rope)


def _if_it_says(attention: Any) -> bool:
    return bool(attention.use_qk_norm)


def _in_windows(attention: Any) -> bool:
    return attention.sliding_window is not None


def _in_windows_if_there_are_any(attention: Any) -> bool:
    return attention.sliding_window is None or bool(attention.is_sliding)


def _normalised(router: Any, _: Any) -> Routing:
    """By a softmax over all, which gives what one over the chosen does."""
    return Routing(router.num_experts, router.top_k, "softmax")


def _normalised_if_it_says(router: Any, _: Any) -> Routing:
    return replace(_normalised(router, None), is_normalised=bool(router.norm_topk_prob))


def _near_best(router: Any, _: Any) -> Routing:
    if router.top_k != 2:
        raise Unfamiliar(f"{router.top_k} experts near the best ones, not 2")
    margin = 2 * router.router_jitter_noise
    return Routing(router.num_experts, 2, "softmax_near_best", is_normalised=False, margin=margin)


def _corrected(router: Any, correction: Any) -> Routing:
    return Routing(router.num_experts, router.top_k, "sigmoid", correction)


def _corrected_softmax(router: Any, correction: Any) -> Routing:
    return replace(_normalised(router, None), correction=correction, least_sum=router.norm_min)


def _corrected_in_groups(router: Any, correction: Any) -> Routing:
    return replace(
        _corrected(router, correction),
        num_groups=router.num_group,
        kept_groups=router.topk_group,
        is_normalised=bool(router.norm_topk_prob),
        least_sum=1e-20,
        scale=float(router.routed_scaling_factor),
    )


@dataclass(frozen=True, slots=True)
class Mixtures:
    """How a family's networks of experts differ from Mixtral's."""

    name: str = "mlp"
    """In a layer; of a dense network too, if some layers have one."""
    kind: str = "SparseMoeBlock"
    """Its class, behind the family's name."""
    router: str = "gate"
    router_kind: str = "TopKRouter"
    routing: Callable[[Any, Any], Routing] = _normalised
    """By the router and the `correction`."""
    correction: str | None = None
    """Where the tensor lies that is added to scores for the choice alone."""
    has_biases: bool = False
    """Of the router and the experts."""
    is_transposed: bool = False
    """Experts' matrices are by inputs first, and gates and what they multiply come in turns."""
    has_clamped_gates: bool = False
    """Instead of an activation: `clamped_swiglu`, by the experts' `alpha` and `limit`."""
    shared: str | None = None
    """What all tokens go through beside their experts, if there is something."""
    is_shared_beside: bool = False
    """It is in the layer, not in the network."""
    shared_gate: str | None = None


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
    head_norms: Callable[[Any], bool] = _never
    """Whether a layer's attention, which is given, norms queries and keys by head."""
    joint_norms: bool = False
    """Queries are normed over all heads together, and so are keys."""
    rotates: Callable[[Any], bool] = _always
    """Whether a layer's attention, which is given, turns queries and keys."""
    are_halves: bool = False
    """Rotary tables are of a head's first half, not of both."""
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
    has_sinks: bool = False
    """Attention brings a score for each head beside those of the keys."""
    mixtures: Mixtures | None = None
    """If layers have experts."""
    unset: str | None = None
    """A setting of the model without which alone it is known."""


_FUSED_GATE: dict[str, Any] = {"gate_up": ("gate_up_proj",), "activation": "activation_fn"}
_UP_ALONE: dict[str, Any] = {"gate_up": ("up_proj",), "is_plain": True}
_GEMMA: dict[str, Any] = {"offset_norms": True, "scaled_embedding": True}
_CAPPED: dict[str, Any] = _GEMMA | {"capped_logits": True}
_COHERE: dict[str, Any] = {
    **{"norm": "LayerNorm", "norms": _BESIDE},
    **{"is_paired": True, "logit_scale": True},
}
_IN_GROUPS = Mixtures(
    kind="MoE",
    router_kind="TopkRouter",
    routing=_corrected_in_groups,
    correction="gate.e_score_correction_bias",
    shared="shared_experts",
)
_GRANITE = Mixtures(name="block_sparse_moe", kind="MoE", router="router")

FAMILIES = {
    "Arcee": Family(**_UP_ALONE),
    "Cohere": Family(**_COHERE),
    "Cohere2": Family(**_COHERE, rotates=_in_windows),
    "Cwm": Family(),
    "Dots1": Family(head_norms=_always, mixtures=_IN_GROUPS),
    "Ernie4_5": Family(is_paired=True),
    "Ernie4_5_Moe": Family(
        is_paired=True,
        mixtures=Mixtures(
            routing=_corrected_softmax,
            correction="gate.moe_statics.e_score_correction_bias",
            shared="shared_experts",
        ),
    ),
    "Exaone4": Family(norms=_BEHIND, head_norms=_always, rotates=_in_windows_if_there_are_any),
    "Gemma": Family(**_GEMMA),
    "Gemma2": Family(**_CAPPED, norms=_AROUND),
    "Gemma3": Family(**_CAPPED, norms=_AROUND, head_norms=_always),
    "Glm": Family(**_FUSED_GATE, is_paired=True),
    "Glm4": Family(
        **_FUSED_GATE,
        is_paired=True,
        norms=Norms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
    "Glm4Moe": Family(head_norms=_if_it_says, mixtures=_IN_GROUPS),
    "GptOss": Family(
        are_halves=True,
        has_sinks=True,
        mixtures=Mixtures(
            kind="MLP",
            router="router",
            has_biases=True,
            is_transposed=True,
            has_clamped_gates=True,
        ),
    ),
    "Granite": Family(multipliers=True),
    "GraniteMoe": Family(multipliers=True, mixtures=_GRANITE),
    "GraniteMoeShared": Family(
        multipliers=True,
        gate_up=("input_linear",),
        down="output_linear",
        activation="activation",
        mixtures=replace(_GRANITE, shared="shared_mlp", is_shared_beside=True),
    ),
    "Helium": Family(is_paired=True),
    "Jais2": Family(**_UP_ALONE, norm=None),
    "Llama": Family(),
    "MiniMaxM2": Family(
        joint_norms=True,
        mixtures=Mixtures(routing=_corrected, correction="e_score_correction_bias"),
    ),
    "Ministral": Family(),
    "Ministral3": Family(scaled_queries=True),
    "Mistral": Family(),
    "Mixtral": Family(mixtures=Mixtures()),
    "Nemotron": Family(**_UP_ALONE, norm="LayerNorm1P", offset_norms=True),
    "Olmo2": Family(norms=_BEHIND, joint_norms=True),
    "Olmo3": Family(norms=_BEHIND, joint_norms=True),
    "Olmoe": Family(
        joint_norms=True,
        mixtures=Mixtures(routing=_normalised_if_it_says),
        unset="clip_qkv",
    ),
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
    "Phimoe": Family(norm=None, mixtures=Mixtures(router="router", routing=_near_best)),
    "Qwen2": Family(),
    "Qwen2Moe": Family(
        mixtures=Mixtures(
            routing=_normalised_if_it_says,
            shared="shared_expert",
            shared_gate="shared_expert_gate",
        )
    ),
    "Qwen3": Family(head_norms=_always),
    "Qwen3Moe": Family(head_norms=_always, mixtures=Mixtures(routing=_normalised_if_it_says)),
    "SeedOss": Family(),
    "SmolLM3": Family(rotates=_where_it_says),
    "StableLm": Family(norm=None),
    "Starcoder2": Family(
        gate_up=("c_fc",), is_plain=True, down="c_proj", activation="act", norm=None
    ),
    "VaultGemma": Family(**_CAPPED, norms=Norms(before_mlp="pre_feedforward_layernorm")),
}
"""By the name of their causal language model, without `ForCausalLM`."""
