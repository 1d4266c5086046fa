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
}
