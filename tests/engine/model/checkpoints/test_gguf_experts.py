"""GGUF files of experts, and of Llamas of today: what is loaded is what the file stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from bench.experts.gguf_file import write_header
from engine.model.checkpoints.gguf import GgufCheckpoint
from engine.model.convert import save_index
from engine.model.load import _paged_logits, load_model
from tests.engine.model.checkpoints.test_gguf import (
    IDS,
    NAMES,
    as_stored,
    config_of,
    relative_error,
    undone,
)
from tests.engine.model.test_model import SMALL

EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
MORE_NAMES = {
    "self_attn.sinks": "attn_sinks",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}


@dataclass(frozen=True)
class Case:
    architecture: str
    family: str
    options: dict[str, Any]
    kind: str = "Q8_0"
    """Of experts' matrices; the rest is in float32."""
    names: dict[str, str] = field(default_factory=dict)


ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CASES = {
    "qwen3moe": Case("qwen3moe", "qwen3_moe", {**ROUTED, "head_dim": 32, "norm_topk_prob": True}),
    "qwen2moe": Case(
        "qwen2moe", "qwen2_moe", {**ROUTED, "shared_expert_intermediate_size": 32}, "Q4_0"
    ),
    "mixtral": Case("llama", "mixtral", {"num_local_experts": 4, "sliding_window": None}, "Q5_1"),
    "gpt-oss": Case(
        "gpt-oss",
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 20},
        "MXFP4",
        {"post_attention_layernorm": "post_attention_norm"},
    ),
}


def place(name: str, case: Case) -> str:
    """Where a product or a norm is in the file."""
    module, _, kind = name.rpartition(".")
    if module.endswith(".self_attn"):  # sinks, which are no module's weight
        module, kind = name, "weight"
    parts = module.split(".")
    names = NAMES | MORE_NAMES | case.names
    if parts[:2] != ["model", "layers"]:
        return f"{names[module]}.{kind}"
    return f"blk.{parts[2]}.{names['.'.join(parts[3:])]}.{kind}"


def split(name: str, values: Tensor, family: str) -> dict[str, Tensor]:
    """A parameter of all experts as files have it: [experts, out, in], gates by themselves."""
    layer, kind = name.split(".")[2], name.rpartition(".")[2]
    product, ending = kind.removesuffix("_bias"), "bias" if "bias" in kind else "weight"
    if family == "gpt_oss" and ending == "weight":
        values = values.transpose(1, 2)
    parts = {product: values}
    if product == "gate_up_proj":
        halves = (
            (values[:, ::2], values[:, 1::2]) if family == "gpt_oss" else values.chunk(2, dim=1)
        )
        parts = dict(zip(("gate_proj", "up_proj"), halves, strict=True))
    return {f"blk.{layer}.{EXPERTS[part]}.{ending}": held for part, held in parts.items()}


def joined(parts: list[Tensor], name: str, family: str) -> Tensor:
    """The parameter again."""
    whole = parts[0]
    if len(parts) == 2:
        whole = torch.cat(parts, 1)
        if family == "gpt_oss":
            whole = torch.stack(parts, 2).flatten(1, 2)
    return whole.transpose(1, 2) if family == "gpt_oss" and "bias" not in name else whole


def random_model(family: str, options: dict[str, Any]) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **(SMALL | options))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    for values in model.parameters():
        values.data += (0.3 if values.dim() == 1 else 0.02) * torch.randn(values.shape)
    return model.eval()


def write_file(path: Path, case: Case) -> PreTrainedModel:
    """A file of a random model, and the model with the weights that it stands for."""
    model = random_model(case.family, case.options)
    writer = GGUFWriter(path, case.architecture)
    write_header(writer, model.config)

    def written(name: str, values: Tensor, kind: str) -> Tensor:
        data = gguf.quantize(values.contiguous().numpy(), GGMLQuantizationType[kind])
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
        found = gguf.dequantize(data, GGMLQuantizationType[kind])
        return torch.from_numpy(found).view(values.shape)

    stands_for = {}
    for name, values in model.state_dict().items():
        if ".experts." in name:
            parts = split(name, values, case.family)
            kind = case.kind if values.dim() == 3 else "F32"
            found = [written(part, held, kind) for part, held in parts.items()]
            stands_for[name] = joined(found, name, case.family)
            continue
        stored = as_stored(name, values, case.architecture, model.config)
        error = written(place(name, case), stored, "F32") - stored
        stands_for[name] = values + undone(name, error, case.architecture, model.config)
    close(writer)
    model.load_state_dict(stands_for)
    return model


def close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def index(path: Path) -> Path:
    folder = path.parent / "folder"
    folder.mkdir()
    save_index(path, GGUFReader(path), folder)
    return folder


@torch.inference_mode()
def logits(folder: Path, **options: Any) -> tuple[Tensor, str | None]:
    model = load_model(config_of(folder, **options))
    return _paged_logits(model, IDS), model.weights.quantized_by


@pytest.mark.parametrize("name", CASES)
def test_experts_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    model = write_file(tmp_path / "model.gguf", CASES[name])
    folder = index(tmp_path / "model.gguf")
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    widened, quantized_by = logits(folder, quantize="none")
    assert quantized_by is None
    assert relative_error(widened, expected) < 1e-5
    in_codes, quantized_by = logits(folder)
    assert quantized_by == "gguf"
    assert relative_error(in_codes, expected) < 0.06


def test_an_expert_is_read_by_itself(tmp_path: Path) -> None:
    model = write_file(tmp_path / "model.gguf", CASES["mixtral"])
    checkpoint = GgufCheckpoint(index(tmp_path / "model.gguf"))
    owner = "model.layers.1.mlp.experts"
    read = checkpoint.groups(f"{owner}.3.up_proj")
    assert read is not None
    whole = model.get_parameter(f"{owner}.gate_up_proj")[3]
    torch.testing.assert_close(read().dequantize(), whole[len(whole) // 2 :])
    assert checkpoint.groups(f"{owner}.3.gate_up_proj") is None


def without_head_dim(writer: GGUFWriter, config: PretrainedConfig) -> None:
    del writer, config


def factors(writer: GGUFWriter, config: PretrainedConfig) -> None:
    """As llama.cpp's converter writes them for `rope_type` llama3."""
    rope = config.rope_parameters
    half = torch.arange(0, config.head_dim, 2) / config.head_dim
    lengths = 2 * torch.pi * rope["rope_theta"] ** half
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    smooth = (low / lengths - 1) / (low / high - 1)
    smooth = smooth.clamp(0, 1)
    divided = 1 / ((1 - smooth) / rope["factor"] + smooth)
    writer.add_tensor("rope_freqs.weight", divided.float().numpy())


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("options", "adds"),
    [
        ({"rope_parameters": LLAMA3, "head_dim": 16}, factors),
        ({"head_dim": 32}, without_head_dim),
    ],
)
def test_llamas_turn_by_their_files_factors_and_have_heads_of_any_size(
    options: dict[str, Any],
    adds: Callable[[GGUFWriter, PretrainedConfig], None],
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    model = random_model("llama", options)
    writer = GGUFWriter(path, "llama")
    write_header(writer, model.config)
    for name, values in model.state_dict().items():
        stored = as_stored(name, values, "llama", model.config).contiguous()
        writer.add_tensor(place(name, CASES["mixtral"]), stored.numpy())
    adds(writer, model.config)
    close(writer)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    loaded = load_model(config_of(index(path)))
    assert loaded.weights.is_fused
    with torch.inference_mode():
        assert relative_error(_paged_logits(loaded, IDS), expected) < 1e-5
