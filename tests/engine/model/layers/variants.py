"""Models of the families that are fused, each with what it may have of its own."""

from __future__ import annotations

from typing import Any

DEFAULT = {"rope_type": "default", "rope_theta": 1e4}
PARTIAL = DEFAULT | {"partial_rotary_factor": 0.5}
SCALED_QUERIES = {
    "rope_theta": 1e4,
    "llama_4_scaling_beta": 0.5,
    "original_max_position_embeddings": 512,
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

Variant = tuple[str, dict[str, Any]]
FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROUPS = FEW | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
MULTIPLIERS = {
    "residual_multiplier": 0.22,
    "embedding_multiplier": 12.0,
    "logits_scaling": 7.0,
    "attention_multiplier": 0.1,
}
MIXTURES: dict[str, Variant] = {
    "mixtral": ("mixtral", {"num_local_experts": 5, "sliding_window": 20}),
    "mixtral, one expert a token": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 1}),
    "qwen2_moe": (
        "qwen2_moe",
        FEW | {"num_experts": 6, "shared_expert_intermediate_size": 48, "hidden_act": "gelu_new"},
    ),
    "qwen2_moe, dense layers, normalised, windows": (
        "qwen2_moe",
        FEW
        | {"num_experts": 6, "shared_expert_intermediate_size": 48, "norm_topk_prob": True}
        | {"decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 20},
    ),
    "qwen3_moe": ("qwen3_moe", FEW | {"num_experts": 8, "head_dim": 32}),
    "qwen3_moe, a dense layer, normalised, biases": (
        "qwen3_moe",
        FEW
        | {"num_experts": 8, "num_experts_per_tok": 3, "mlp_only_layers": [1]}
        | {"norm_topk_prob": True, "attention_bias": True},
    ),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32}),
    "olmoe, normalised": (
        "olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    "granitemoe": ("granitemoe", MULTIPLIERS | {"num_local_experts": 4}),
    "granitemoeshared": (
        "granitemoeshared",
        MULTIPLIERS | {"num_local_experts": 4, "shared_intermediate_size": 40},
    ),
    "granitemoeshared, nothing shared": (
        "granitemoeshared",
        {"num_local_experts": 4, "attention_multiplier": 0.25},
    ),
    "phimoe": ("phimoe", {"num_local_experts": 6, "router_jitter_noise": 0.4}),
    "phimoe, window, biases": (
        "phimoe",
        {
            "num_local_experts": 4,
            "sliding_window": 20,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "minimax_m2": (
        "minimax_m2",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32}
        | {"rope_parameters": PARTIAL},
    ),
    "glm4_moe": (
        "glm4_moe",
        GROUPS | {"rope_parameters": PARTIAL, "use_qk_norm": True, "first_k_dense_replace": 1},
    ),
    "glm4_moe, no norms of heads, not normalised, biases": (
        "glm4_moe",
        FEW
        | {"n_routed_experts": 6, "norm_topk_prob": False, "attention_bias": True}
        | {"n_shared_experts": 2, "first_k_dense_replace": 2},
    ),
    "dots1": (
        "dots1",
        GROUPS
        | {"n_shared_experts": 2, "norm_topk_prob": True, "sliding_window": 20}
        | {"layer_types": LAYERS, "first_k_dense_replace": 1},
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 32, "use_bias": True}
        | {"tie_word_embeddings": False},
    ),
    "ernie4_5_moe, nothing shared": (
        "ernie4_5_moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_interval": 2}
        | {"moe_num_shared_experts": 0, "moe_norm_min": 0.6},
    ),
    "gpt_oss": (
        "gpt_oss",
        {"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 20},
    ),
    "gpt_oss, yarn, no biases in attention": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": False}
        | {"layer_types": LAYERS, "sliding_window": 20}
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 128,
            }
        },
    ),
}
"""With experts: chosen by each rule, in networks of each kind."""
_ALL_OF_TWO = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **{"num_experts_per_tok": 2, "moe_k": 2, "n_group": 1, "topk_group": 1},
}
WITHOUT_CHOICE: dict[str, Variant] = {
    name: (family, options | _ALL_OF_TWO)
    for name, (family, options) in MIXTURES.items()
    if family != "phimoe"
}
"""The same where every expert is chosen by all: roundings change no choice, which would change all.
What Phimoe's count depends on which one is chosen first."""
VARIANTS: dict[str, Variant] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama, as many KV heads": ("llama", {"num_key_value_heads": 4}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "llama, llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama, yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "mistral, window": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "layer_types": LAYERS},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3, biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma": ("gemma", {"head_dim": 32}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 20,
            "layer_types": LAYERS,
            "query_pre_attn_scalar": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 20,
            "layer_types": LAYERS,
            "query_pre_attn_scalar": 5,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3, capped, linear": (
        "gemma3_text",
        {
            "layer_types": LAYERS,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("phi3", {}),
    "phi3, window, a part of each head turned": (
        "phi3",
        {"sliding_window": 20, "rope_parameters": PARTIAL | {"partial_rotary_factor": 0.75}},
    ),
    "glm": ("glm", {"attention_bias": True, "rope_parameters": PARTIAL}),
    "glm4": ("glm4", {"rope_parameters": PARTIAL}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "helium": ("helium", {}),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 20,
            "layer_types": LAYERS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "exaone4": ("exaone4", {"sliding_window": 20, "layer_types": LAYERS}),
    "exaone4, no windows": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "granite": (
        "granite",
        {
            "residual_multiplier": 0.22,
            "embedding_multiplier": 12.0,
            "logits_scaling": 7.0,
            "attention_multiplier": 0.1,
            "rms_norm_eps": 0.1,
        },
    ),
    "ministral": ("ministral", {"sliding_window": 20, "layer_types": LAYERS}),
    "ministral3": (
        "ministral3",
        {"rope_parameters": {"rope_type": "default", **SCALED_QUERIES}},
    ),
    "seed_oss": ("seed_oss", {"attention_out_bias": True}),
    "cwm": ("cwm", {"sliding_window": 20, "layer_types": LAYERS, "rope_parameters": DEFAULT}),
    "vaultgemma": (
        "vaultgemma",
        {
            "sliding_window": 20,
            "layer_types": LAYERS,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "phi": ("phi", {"rope_parameters": PARTIAL}),
    "cohere": ("cohere", {"logit_scale": 0.3, "attention_bias": True}),
    "cohere2": ("cohere2", {"logit_scale": 0.3, "sliding_window": 20, "layer_types": LAYERS}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "rope_parameters": PARTIAL}),
    "starcoder2": ("starcoder2", {"use_bias": True, "sliding_window": 20}),
    "nemotron": ("nemotron", {"rope_parameters": PARTIAL}),
    "jais2": ("jais2", {}),
    "arcee": ("arcee", {}),
    **MIXTURES,
}
