"""A tiny model of each family that transformers has, of random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WINDOW = 11
_LAYERS = 4
_SIZES: dict[str, Any] = {
    # vocabulary and positions
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 97),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 512),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    # widths
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("decoder_ffn_dim",), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("moe_ffn_hidden_size", "kv_lora_rank", "q_lora_rank", "global_head_dim"), 16),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("index_head_dim", "hidden_size_per_layer_input", "rotary_dim"), 8),
    # numbers of layers, heads and experts
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers"), _LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "index_n_heads"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **{"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"n_shared_experts": 1, "num_shared_experts": 1, "num_kv_shared_layers": 1},
    # states
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("mamba_num_heads",), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_head_dim", "mamba_d_state"), 8),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head", "ssm_state_size", "state_size"), 8),
    **{"linear_num_key_heads": 2, "linear_value_head_dim": 12, "n_groups": 2, "mamba_d_ssm": 32},
    # what a token sees
    **{"sliding_window": WINDOW, "attention_chunk_size": 13, "index_topk": 16},
}
_ONLY_SET = {"attention_chunk_size", "q_lora_rank", "n_inner", "hidden_size_per_layer_input"}
"""Sizes that stay away where a family leaves them out."""
_GEMMA4 = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
_LATENTS = ("axk1", "deepseek_v2", "deepseek_v3", "dots3_note", "dots3_note_text", "glm4_moe_lite")
_LATENTS += ("minicpm3", "youtu")
_HYBRID = ["linear_attention", "full_attention"] * 2
_OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "mamba_d_head": 16},
    "granitemoehybrid": {"layer_types": _HYBRID, "mamba_d_head": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **{family: {"layer_types": ["conv", "full_attention"] * 2} for family in ("lfm2", "lfm2_moe")},
    "kimi_linear": {"num_experts_per_token": 2, "num_key_value_heads": 4},
    **{family: {"num_key_value_heads": 4} for family in _LATENTS},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "llama4_text": {"floor_scale": 16},
    "longcat_flash": {
        **{"num_key_value_heads": 4, "qk_head_dim": 16, "expert_ffn_hidden_size": 16},
        **{"moe_topk": 2, "zero_expert_num": 2},
    },
    "minimax": {"layer_types": _HYBRID, "block_size": 16},
    "mamba2": {"num_heads": 8},
    **{family: {"global_head_dim": 16} for family in _GEMMA4},
    "zaya": {"num_experts_per_tok": 1},
}
"""What families need besides."""
_NOT_TINY = {
    *("blt", "cohere_compass_text", "cpmant", "ctrl", "dbrx", "emu3", "gemma4_assistant", "git"),
    *("mllama", "musicgen", "musicgen_melody", "phi4_multimodal"),
    *("qwen4_exp", "qwen4_exp_text", "reformer", "roc_bert", "xlm", "zamba", "zamba2"),
}
"""Families whose sizes have names or rules of their own, or that need more than tokens."""


def families() -> list[str]:
    """Those with a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - _NOT_TINY)


def tiny_config(family: str, **options: Any) -> PreTrainedConfig:
    """Its text model's configuration: four layers, one of each kind that it has by default."""
    default: Any = CONFIG_MAPPING[family]().get_text_config()
    known = {name: value for name, value in vars(default).items() if not name.startswith("_")}
    chosen = {
        name: size
        for name, size in _SIZES.items()
        if name in known and not (name in _ONLY_SET and known[name] is None)
    }
    kinds = list(dict.fromkeys(known.get("layer_types") or ()))
    if kinds:
        chosen["layer_types"] = (kinds * _LAYERS)[:_LAYERS]
    config: PreTrainedConfig = type(default)(**(chosen | _OWN.get(family, {}) | options))
    return config


def tiny_model(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = GenerationConfig(eos_token_id=2)
    return model
