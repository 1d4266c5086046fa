"""Folders of experts in codes, and of floats of 8 and 4 bits, as they are published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.api import UnsupportedModel
from engine.model.load import _paged_logits, load_model
from kernels.native import library
from tests.engine.model.checkpoints import packers
from tests.engine.model.checkpoints.packers import quantize, write_options
from tests.engine.model.checkpoints.test_folders import (
    IDS,
    compressed,
    config_of,
    gptq,
    relative_error,
)
from tests.engine.model.test_model import SMALL
from tests.kernels.test_linear import needs_library

Stored = dict[str, Tensor]
Pack = Callable[[Tensor], tuple[Stored, Tensor]]
"""A matrix [out, in] to the tensors of its module, and what they stand for."""

LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
GPT_OSS = EXPERTS | {"head_dim": 16, "sliding_window": 20, "intermediate_size": 96}
MIXTRAL_PARTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def random_model(family: str, options: dict[str, Any], folder: Path) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **(SMALL | options))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for values in model.state_dict().values():
        values += 0.02 * torch.randn(values.shape)
    model.save_pretrained(folder)
    return model


def fp8(matrix: Tensor, block: tuple[int, int] | None, name: str) -> tuple[Stored, Tensor]:
    """In blocks, of which the last of each row and column may be smaller; or with one scale."""
    height, width = block or matrix.shape
    scales = torch.empty(-(-matrix.shape[0] // height), -(-matrix.shape[1] // width))
    floats = torch.empty_like(matrix, dtype=torch.float8_e4m3fn)
    stands_for = torch.empty_like(matrix)
    for i, row in enumerate(range(0, matrix.shape[0], height)):
        for j, column in enumerate(range(0, matrix.shape[1], width)):
            part = slice(row, row + height), slice(column, column + width)
            scales[i, j] = matrix[part].abs().max() / 448
            floats[part] = (matrix[part] / scales[i, j]).to(floats.dtype)
            stands_for[part] = floats[part].float() * scales[i, j]
    if block is None:
        scales = scales.view(())
    return {"weight": floats, name: scales}, stands_for


def by_output(matrix: Tensor) -> tuple[Stored, Tensor]:
    scales = matrix.abs().amax(1, keepdim=True) / 448
    floats = (matrix / scales).to(torch.float8_e4m3fn)
    return {"weight": floats, "weight_scale": scales.bfloat16()}, floats.float() * scales.bfloat16()


def four_bits(matrix: Tensor) -> tuple[Stored, Tensor]:
    one = quantize(matrix, bits=4, group_size=32, symmetric=False, scale=torch.float16)
    return packers.pack_gptq(one, 4), one.weight()


def store_apart(
    model: PreTrainedModel, folder: Path, pack: Pack, parts: dict[str, str] | None = None
) -> None:
    """Each expert's products by themselves, in codes, and so all other projections; the model
    becomes what they stand for.
    """
    path = folder / "model.safetensors"
    stored: Stored = {}
    for name, values in model.state_dict().items():
        owner, _, kind = name.rpartition(".")
        if kind in ("gate_up_proj", "down_proj") and values.dim() == 3:
            for expert, matrix in enumerate(values):
                split = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
                names = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
                found = [pack(part) for part in split]
                matrix.copy_(torch.cat([stands_for for _, stands_for in found]))
                for part, (tensors, _) in zip(names, found, strict=True):
                    place = f"{owner}.{expert}.{(parts or {}).get(part, part)}"
                    stored |= {f"{place}.{key}": value for key, value in tensors.items()}
        elif owner.endswith("_proj") and kind == "weight":
            tensors, stands_for = pack(values)
            values.copy_(stands_for)
            stored |= {f"{owner}.{key}": value for key, value in tensors.items()}
        else:
            stored[name] = values
    if parts is not None:
        stored = {
            name.replace(".mlp.", ".block_sparse_moe."): value for name, value in stored.items()
        }
    save_file({name: value.clone().contiguous() for name, value in stored.items()}, path)


@torch.inference_mode()
def expected_logits(model: PreTrainedModel) -> Tensor:
    logits: Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


@torch.inference_mode()
def loaded_logits(folder: Path, **options: Any) -> tuple[Tensor, str | None]:
    model = load_model(config_of(folder, **options))
    return _paged_logits(model, IDS), model.weights.quantized_by


ROUTED = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
IN_BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 48]}
OF_FLOATS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
BLOCKS = partial(fp8, block=(32, 48), name="weight_scale_inv")
WHOLE = partial(fp8, block=None, name="weight_scale_inv")
APART: dict[str, tuple[str, dict[str, Any], dict[str, Any], Pack, dict[str, str] | None]] = {
    "fp8 in blocks": ("qwen3_moe", ROUTED, IN_BLOCKS, BLOCKS, None),
    "fp8 of whole matrices": ("llama", {}, {"quant_method": "fp8"}, WHOLE, None),
    "fp8, a correction of choices": ("minimax_m2", EXPERTS, IN_BLOCKS, BLOCKS, MIXTRAL_PARTS),
    "compressed floats": (
        "qwen3_moe",
        ROUTED,
        compressed("float-quantized", OF_FLOATS),
        by_output,
        None,
    ),
    "gptq": ("qwen3_moe", ROUTED, gptq(4, 32), four_bits, None),
    "gptq of mixtral": ("mixtral", EXPERTS, gptq(4, 32), four_bits, MIXTRAL_PARTS),
}


@pytest.mark.parametrize("name", APART)
def test_experts_are_put_together_from_their_products(name: str, tmp_path: Path) -> None:
    family, options, quantization, pack, parts = APART[name]
    model = random_model(family, options, tmp_path)
    with torch.no_grad():
        store_apart(model, tmp_path, pack, parts)
    write_options(tmp_path, quantization)
    found, quantized_by = loaded_logits(tmp_path, quantize="none")
    assert quantized_by is None
    expected = expected_logits(model)
    assert relative_error(found, expected) < 1e-5
    if pack is four_bits:
        in_codes, quantized_by = loaded_logits(tmp_path)
        assert quantized_by == "gptq"
        assert 1e-4 < relative_error(in_codes, expected) < 0.06


def test_floats_of_8_bits_are_widened_and_the_log_says_what_that_takes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model("llama", {}, tmp_path)
    with torch.no_grad():
        store_apart(model, tmp_path, WHOLE)
    write_options(tmp_path, {"quant_method": "fp8"})
    with caplog.at_level(logging.INFO):
        found, _ = loaded_logits(tmp_path)
    assert "quantized by fp8 are widened to float32" in caplog.text
    assert relative_error(found, expected_logits(model)) < 1e-5


def random_mxfp4(shape: Sequence[int], seed: int = 5) -> tuple[Stored, Tensor]:
    """Codes and scales as gpt-oss is published, and what they say: matrices [experts, in, out]."""
    experts, inputs, outputs = shape
    generator = torch.Generator().manual_seed(seed)
    grouped = experts, outputs, inputs // 32
    blocks = torch.randint(256, (*grouped, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 124, grouped, generator=generator, dtype=torch.uint8)
    levels = torch.stack([LEVELS[(blocks & 15).int()], LEVELS[(blocks >> 4).int()]], -1)
    matrices = levels.flatten(3) * (scales.float() - 127).exp2()[..., None]
    return {"blocks": blocks, "scales": scales}, matrices.flatten(2).transpose(1, 2)


def store_mxfp4(model: PreTrainedModel, folder: Path) -> None:
    """Codes and scales are random, and the model becomes what they say."""
    path = folder / "model.safetensors"
    stored = load_file(path)
    for seed, (name, values) in enumerate(model.state_dict().items()):
        if values.dim() == 3 and ".experts." in name:
            codes, matrices = random_mxfp4(values.shape, seed)
            values.copy_(matrices)
            del stored[name]
            stored |= {f"{name}_{part}": tensor for part, tensor in codes.items()}
    save_file(stored, path)
    write_options(folder, {"quant_method": "mxfp4"})


@needs_library
def test_gpt_oss_is_read_as_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("gpt_oss", GPT_OSS, tmp_path)
    with torch.no_grad():
        store_mxfp4(model, tmp_path)
    widened, quantized_by = loaded_logits(tmp_path, quantize="none")
    assert quantized_by is None
    expected = expected_logits(model)
    assert relative_error(widened, expected) < 1e-5
    in_codes, quantized_by = loaded_logits(tmp_path)
    assert quantized_by == "mxfp4"
    assert 1e-4 < relative_error(in_codes, expected) < 0.06
    monkeypatch.setattr(library, "available", lambda: False)
    assert relative_error(loaded_logits(tmp_path)[0], expected) < 1e-5


@pytest.mark.parametrize("quantize_option", ["auto", "none"])
def test_more_experts_than_the_configuration_has_are_refused(
    quantize_option: str, tmp_path: Path
) -> None:
    model = random_model("gpt_oss", GPT_OSS, tmp_path)
    with torch.no_grad():
        store_mxfp4(model, tmp_path)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    longer = {
        name: torch.cat([values, values[:1]]) if ".experts.down_proj_" in name else values
        for name, values in stored.items()
    }
    save_file(longer, path)
    with pytest.raises(UnsupportedModel, match=r"more experts in .*down_proj than the 3 of its"):
        loaded_logits(tmp_path, quantize=quantize_option)


Spoil = Callable[[Tensor], Tensor | None]
BROKEN: dict[str, tuple[str, str, Spoil, str]] = {
    "an expert": ("gptq", "experts.1.", lambda _: None, "no .*experts.1.gate_proj"),
    "a float expert": ("fp8 in blocks", "experts.1.", lambda _: None, "no .*experts.1.gate_proj"),
    "scales": ("gptq", "1.up_proj.scales", lambda _: None, "no .*1.up_proj.scales"),
    "scales of floats": (
        *("fp8 in blocks", "q_proj.weight_scale_inv", lambda _: None),
        "q_proj.weight has no scales",
    ),
    "rows of scales": ("gptq", "1.up_proj.scales", lambda x: x[:1], "1.up_proj do not fit"),
    "blocks of scales": (
        *("fp8 in blocks", "1.up_proj.weight_scale_inv", lambda x: x[:1]),
        r"1.up_proj.weight has scales of shape \[1, 2\], for \[96, 64\]",
    ),
    "columns": (
        *("gptq of mixtral", ".w2.", lambda x: x[:, :8] if x.dim() == 2 else x),
        "w2 do not fit",
    ),
    "outputs": (
        *("gptq of mixtral", ".w2.", lambda x: x[:, : x.shape[1] // 2] if x.dim() == 2 else x),
        r"down_proj of shape \[32, 96\], not \[64, 96\]",
    ),
}
"""What is missing: in which checkpoint, of which tensors, and what is said."""


@pytest.mark.parametrize("what", BROKEN)
def test_what_a_checkpoint_lacks_is_told_by_its_name(what: str, tmp_path: Path) -> None:
    name, part, spoil, told = BROKEN[what]
    family, options, quantization, pack, parts = APART[name]
    model = random_model(family, options, tmp_path)
    with torch.no_grad():
        store_apart(model, tmp_path, pack, parts)
    write_options(tmp_path, quantization)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    changed = {key: spoil(values) if part in key else values for key, values in stored.items()}
    kept = {key: values.clone() for key, values in changed.items() if values is not None}
    save_file(kept, path)
    for quantize_option in ("auto", "none"):
        with pytest.raises(UnsupportedModel, match=told):
            loaded_logits(tmp_path, quantize=quantize_option)


@pytest.mark.parametrize("block", [(32, 48), None], ids=["in blocks", "one scale each"])
def test_floats_of_all_experts_in_one_tensor_are_widened(
    block: tuple[int, int] | None, tmp_path: Path
) -> None:
    model = random_model("qwen3_moe", ROUTED, tmp_path)
    path, stored = tmp_path / "model.safetensors", model.state_dict()
    for name, values in list(stored.items()):
        if ".experts." in name:
            packed = [fp8(matrix, block, "scale") for matrix in values]
            values.copy_(torch.stack([stands_for for _, stands_for in packed]))
            stored[name] = torch.stack([tensors["weight"] for tensors, _ in packed])
            scales = torch.stack([tensors["scale"] for tensors, _ in packed])
            stored[f"{name}_scale_inv"] = scales
    save_file({name: values.clone() for name, values in stored.items()}, path)
    write_options(tmp_path, IN_BLOCKS)
    assert relative_error(loaded_logits(tmp_path)[0], expected_logits(model)) < 1e-5
