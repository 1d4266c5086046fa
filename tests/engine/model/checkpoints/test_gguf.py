"""GGUF files: what is loaded is what the file's codes stand for, tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from bench.experts.gguf_file import write_header
from engine.config import EngineConfig
from engine.model import weights
from engine.model.checkpoints.gguf import GgufCheckpoint, StoredTensor
from engine.model.convert import save_index
from engine.model.fingerprint import model_fingerprint
from engine.model.load import _paged_logits, load_model
from engine.model.weights import GGUF_INDEX, GGUF_LINK, resolve_model
from kernels.native import library
from tests.engine.model.test_model import SMALL

IDS = [(7919 * i + 11) % 1000 for i in range(20)]
KINDS = {
    "q_proj": "Q4_0",
    "k_proj": "Q4_1",
    "v_proj": "Q8_0",
    "o_proj": "Q5_0",
    "gate_proj": "Q4_0",
    "up_proj": "F16",
    "down_proj": "Q5_1",
    "embed_tokens": "Q8_0",
}
"""What the matrices of each name are stored as; the rest is in float32."""
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 128},
    "gemma2": {"tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096},
}


def stored_name(name: str, family: str) -> str:
    module, _, kind = name.rpartition(".")
    parts = module.split(".")
    if parts[:2] != ["model", "layers"]:
        return f"{NAMES[module]}.{kind}"
    names = NAMES | (GEMMA_NAMES if family == "gemma2" else {})
    return f"blk.{parts[2]}.{names['.'.join(parts[3:])]}.{kind}"


def as_stored(name: str, values: Tensor, family: str, config: PretrainedConfig) -> Tensor:
    """As llama.cpp's converter has it: Llama's queries and keys with neighbours rotated together,
    and Gemma's norms with their 1.
    """
    if family == "gemma2" and name.endswith("norm.weight"):
        return values + 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if family == "llama" and part in name:
            halves = values.view(count, 2, -1, *values.shape[1:])
            return halves.transpose(1, 2).reshape(values.shape)
    return values


def write_file(path: Path, family: str) -> PreTrainedModel:
    """A file of a random model, and the model with the weights that it stands for."""
    options = SMALL | FAMILIES[family]
    config = AutoConfig.for_model(family, **options)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    writer = GGUFWriter(path, family)
    write_header(writer, config)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
    stands_for = {}
    for name, values in model.named_parameters():
        if values.dim() == 1:
            values.data += 0.3 * torch.randn(values.shape)
        stored = as_stored(name, values.detach(), family, config).contiguous().numpy()
        kind = KINDS.get(name.split(".")[-2], "F32") if values.dim() == 2 else "F32"
        kind = GGMLQuantizationType[kind]
        data = gguf.quantize(stored, kind)
        writer.add_tensor(stored_name(name, family), data, raw_dtype=kind)
        error = gguf.dequantize(data, kind).reshape(stored.shape) - stored
        stands_for[name] = values + undone(name, torch.from_numpy(error), family, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(stands_for, strict=False)
    return model


def undone(name: str, errors: Tensor, family: str, config: PretrainedConfig) -> Tensor:
    """Errors of what is stored, in the model's order."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if family == "llama" and part in name:
            pairs = errors.view(count, -1, 2, *errors.shape[1:])
            return pairs.transpose(1, 2).reshape(errors.shape)
    return errors


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder), device="cpu", dtype="float32", block_size=8, threads=1, **options
    )


def paged_logits(folder: Path, **options: Any) -> Tensor:
    model = load_model(config_of(folder, **options))
    assert model.weights.is_fused
    assert model.weights.quantized_by == (None if options else "gguf")
    with torch.inference_mode():
        return _paged_logits(model, IDS)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_what_the_file_stands_for(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "model.gguf", tmp_path / "folder"
    folder.mkdir()
    model = write_file(path, family)
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0]
    save_index(path, GGUFReader(path), folder)
    assert relative_error(paged_logits(folder, quantize="none"), expected) < 1e-5
    if library.available():
        assert 1e-4 < relative_error(paged_logits(folder), expected) < 0.06
    monkeypatch.setattr(library, "available", lambda: False)
    assert relative_error(paged_logits(folder), expected) < 1e-5


def test_weights_of_another_structure_are_rounded_to_8_bits(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (4, 210), dtype=np.uint8)  # of Q6_K: 256 weights each
    blocks[:, 208:] = np.full((4, 1), 0.02, dtype=np.float16).view(np.uint8)
    writer.add_tensor("some", blocks, raw_dtype=GGMLQuantizationType.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = GGUFReader(path).tensors
    stored = StoredTensor("Q6_K", [4, 256], int(tensor.data_offset), blocks.nbytes)
    (tmp_path / GGUF_INDEX).write_bytes(msgspec.json.encode({"a.weight": stored}))
    (tmp_path / GGUF_LINK).symlink_to(path)
    checkpoint = GgufCheckpoint(tmp_path)
    exact = checkpoint.tensor("a.weight")
    assert exact is not None
    values = gguf.dequantize(blocks, GGMLQuantizationType.Q6_K)
    assert torch.equal(exact, torch.from_numpy(values))
    read = checkpoint.groups("a")
    assert read is not None
    assert read().bits == 8
    assert relative_error(read().dequantize(), exact) < 0.005


def test_a_folder_finds_a_file_that_has_moved_and_hashes_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(gguf: Path, folder: Path, widens: bool) -> None:
        assert not widens
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / GGUF_LINK).symlink_to(gguf)

    monkeypatch.setattr(weights, "_convert", convert)
    first, second = tmp_path / "one.gguf", tmp_path / "elsewhere" / "one.gguf"
    first.write_bytes(b"weights")
    folder = resolve_model(str(first), tmp_path / "cache")
    before = model_fingerprint(config_of(folder), torch.float32)
    second.parent.mkdir()
    first.rename(second)
    assert resolve_model(str(second), tmp_path / "cache") == folder
    assert (folder / GGUF_LINK).read_bytes() == b"weights"
    assert model_fingerprint(config_of(folder), torch.float32) == before
    second.write_bytes(b"others!")
    assert model_fingerprint(config_of(folder), torch.float32) != before
    assert model_fingerprint(config_of(folder, quantize="none"), torch.float32) != before
