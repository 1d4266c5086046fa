"""The same weights as a GGUF file, as llama.cpp's converter would write it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from bench.experts.shapes import read_folder

KINDS: Final = {"bf16": GGMLQuantizationType.BF16, "int8": GGMLQuantizationType.Q8_0}
"""What matrices are stored as, by the bench's name of it."""
_ROTATES_NEIGHBOURS: Final = {"granitemoe"}
"""Architectures whose queries and keys have what is rotated together side by side."""


def write_gguf(folder: Path, path: Path, weights: str, tokenizer_of: Path) -> None:
    """Write a folder's weights, with the tokenizer and chat template of another GGUF file.

    Norms and routers stay in float32. No more than a tensor is in memory.
    """
    config = AutoConfig.from_pretrained(folder)
    writer = GGUFWriter(path, config.model_type)
    write_header(writer, config)
    _copy_tokenizer(writer, GGUFReader(tokenizer_of))
    for name, values in stored(folder, config):
        kind = _kind(name, values, weights)
        size = gguf.quant_shape_to_byte_shape(values.shape, kind)
        num_bytes = int(np.prod(size))
        writer.add_tensor_info(name, size, np.dtype(np.uint8), num_bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, values in stored(folder, config):
        floats = values.float().contiguous().numpy()
        data = gguf.quantize(floats, _kind(name, values, weights))
        writer.write_tensor_data(data.view(np.uint8))
    writer.close()


def stored(folder: Path, config: PretrainedConfig) -> Iterator[tuple[str, Tensor]]:
    """What the file has, by its names: gates and what they multiply by themselves."""
    (arch,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for whole, values in read_folder(folder):
        for name, part in _parts(whole.replace(".block_sparse_moe.", ".mlp."), values):
            place = names.get_name(name.removesuffix(".weight"))
            if place is None:
                raise ValueError(f"GGUF has no name for {name}")
            yield f"{place}.weight", _ordered(name, part, config)


def _parts(name: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    owner, _, kind = name.rpartition(".")
    if kind != "gate_up_proj":
        yield name, values
        return
    gates, ups = values.chunk(2, dim=1)
    yield f"{owner}.gate_proj", gates
    yield f"{owner}.up_proj", ups


def _ordered(name: str, values: Tensor, config: PretrainedConfig) -> Tensor:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if count is None or config.model_type not in _ROTATES_NEIGHBOURS:
        return values
    halves = values.view(count, 2, -1, *values.shape[1:])
    return halves.transpose(1, 2).reshape(values.shape)


def _kind(name: str, values: Tensor, weights: str) -> GGMLQuantizationType:
    is_exact = values.dim() == 1 or "ffn_gate_inp" in name
    return GGMLQuantizationType.F32 if is_exact else KINDS[weights]


def write_header(writer: GGUFWriter, config: PretrainedConfig) -> None:
    """What a file says of a model, as far as its configuration has it."""
    head_dim = getattr(config, "head_dim", None)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim or config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if head_dim:
        writer.add_key_length(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if hasattr(config, "num_experts_per_tok"):
        writer.add_expert_count(getattr(config, "num_experts", 0) or config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type == "granitemoe":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def _copy_tokenizer(writer: GGUFWriter, source: GGUFReader) -> None:
    for name, field in source.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind, *inner = field.types
        within = inner[-1] if kind is GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, within)
