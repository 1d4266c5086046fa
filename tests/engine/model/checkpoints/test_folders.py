"""GPTQ, AWQ and compressed-tensors: what is read is what the codes stand for, or is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from engine.api import UnsupportedModel
from engine.config import EngineConfig
from engine.model.load import _paged_logits, load_model
from engine.model.original import load_original
from kernels.native import library
from tests.engine.model.checkpoints import packers
from tests.engine.model.checkpoints.packers import Quantized, quantize, rewrite, write_options
from tests.engine.model.test_model import SMALL, save_model

IDS = [(7919 * i + 11) % 1000 for i in range(20)]


def gptq(bits: int, group_size: int, **others: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group_size, **others}


def awq(group_size: int, **others: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group_size, **others}


def compressed(form: str, weights: dict[str, Any], **others: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": weights, **others}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }


def by_group(bits: int, size: int, **others: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "strategy": "group", "group_size": size, **others}


ACTIVATIONS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}
BY_ROW = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}


@dataclass(frozen=True)
class Case:
    options: dict[str, Any]
    rounded: Callable[[Tensor], Quantized]
    packed: Callable[[Quantized], dict[str, Tensor]]


def case(
    options: dict[str, Any],
    packed: Callable[..., dict[str, Tensor]],
    bits: int,
    group_size: int,
    symmetric: bool,
    scale: torch.dtype,
    **others: Any,
) -> Case:
    rounded = partial(quantize, bits=bits, group_size=group_size, symmetric=symmetric, scale=scale)
    return Case(options, rounded, partial(packed, bits=bits, **others))


HALF, BRAIN = torch.float16, torch.bfloat16
CASES = {
    "gptq": case(gptq(4, 32), packers.pack_gptq, 4, 32, True, HALF),
    "gptq, zero points": case(gptq(4, 64), packers.pack_gptq, 4, 64, False, HALF),
    "gptq, second format": case(
        gptq(4, 32, checkpoint_format="gptq_v2"), packers.pack_gptq, 4, 32, False, HALF, offset=0
    ),
    "gptq, whole rows": case(gptq(4, -1), packers.pack_gptq, 4, -1, False, HALF),
    "gptq, 8 bits": case(gptq(8, 32), packers.pack_gptq, 8, 32, True, HALF),
    "awq": case(awq(32, version="gemm"), packers.pack_awq, 4, 32, False, HALF),
    "w4a16": case(
        compressed("pack-quantized", by_group(4, 64)), packers.pack_compressed, 4, 64, True, BRAIN
    ),
    "w4a16, zero points": case(
        compressed("pack-quantized", by_group(4, 32, symmetric=False)),
        packers.pack_compressed,
        4,
        32,
        False,
        HALF,
        with_zeros=True,
    ),
    "w8a16": case(
        compressed("pack-quantized", by_group(8, 32)), packers.pack_compressed, 8, 32, True, BRAIN
    ),
    "w8a8": case(
        compressed("int-quantized", BY_ROW, input_activations=ACTIVATIONS),
        packers.pack_bytes,
        8,
        -1,
        True,
        BRAIN,
    ),
}


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder), device="cpu", dtype="float32", block_size=8, threads=1, **options
    )


def paged_logits(folder: Path, **options: Any) -> tuple[Tensor, str | None]:
    model = load_model(config_of(folder, **options))
    with torch.inference_mode():
        return _paged_logits(model, IDS), model.weights.quantized_by


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Tensor, str]:
    """A folder, the logits of what its codes stand for, and its method."""
    found = CASES[request.param]
    config = AutoConfig.for_model("llama", **(SMALL | {"intermediate_size": 128}))
    torch.manual_seed(1)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    plain.save_pretrained(tmp_path)
    weights = rewrite(tmp_path, found.options, found.rounded, found.packed)
    plain.load_state_dict(weights, strict=False)
    with torch.no_grad():
        logits = plain(torch.tensor([IDS])).logits[0]
    return tmp_path, logits, found.options["quant_method"]


def test_codes_stand_for_the_same_weights_and_products_round_their_inputs_only(
    checkpoint: tuple[Path, Tensor, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected, method = checkpoint
    widened, quantized_by = paged_logits(folder, quantize="none")
    assert quantized_by is None
    assert relative_error(widened, expected) < 1e-5
    in_codes, quantized_by = paged_logits(folder)
    assert quantized_by == method
    if library.available():
        assert 1e-4 < relative_error(in_codes, expected) < 0.06
    monkeypatch.setattr(library, "available", lambda: False)
    assert relative_error(paged_logits(folder)[0], expected) < 1e-5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gptq of 3 bits": (gptq(3, 32), "gptq.*weights of 3 bits"),
    "odd groups": (gptq(4, 48), "gptq.*groups of 48"),
    "gptq for marlin": (gptq(4, 32, checkpoint_format="marlin"), "gptq.*format is marlin"),
    "layers apart": (gptq(4, 32, dynamic={"-:lm_head": {}}), "gptq.*dynamic"),
    "awq for gemv": (awq(32, version="gemv"), "awq.*layout is gemv"),
    "awq without zero points": (awq(32, zero_point=False), "awq.*no zero points"),
    "fp8 with experts in fp4": (
        {"quant_method": "fp8", "expert_dtype": "fp4"},
        "quantized by fp8 are not supported: experts are in fp4",
    ),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "quantized by bitsandbytes"),
    "compressed fp4": (
        compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}),
        "compressed-tensors.*format is nvfp4-pack-quantized",
    ),
    "fp4 in packed weights": (
        compressed("pack-quantized", {"num_bits": 4, "type": "float"}),
        "compressed-tensors.*type float",
    ),
    "static activations": (
        compressed("int-quantized", BY_ROW, input_activations=ACTIVATIONS | {"dynamic": False}),
        "compressed-tensors.*static",
    ),
    "activations in 4 bits": (
        compressed("int-quantized", BY_ROW, input_activations=ACTIVATIONS | {"num_bits": 4}),
        "compressed-tensors.*activations in int4",
    ),
    "a rotated model": (
        compressed("pack-quantized", by_group(4, 32)) | {"transform_config": {"r1": {}}},
        "compressed-tensors.*transform_config",
    ),
    "a sparse model": (
        compressed("pack-quantized", by_group(4, 32))
        | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        "compressed-tensors.*sparse",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name_and_reason(name: str, tmp_path: Path) -> None:
    options, reason = REFUSED[name]
    save_model("llama", tmp_path)
    write_options(tmp_path, options)
    with pytest.raises(UnsupportedModel, match=reason):
        load_model(config_of(tmp_path))


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    def shuffled(one: Quantized) -> dict[str, Tensor]:
        packed = packers.pack_gptq(one, 4)
        return packed | {"g_idx": packed["g_idx"].flip(0)}

    found = CASES["gptq"]
    save_model("llama", tmp_path)
    rewrite(tmp_path, found.options | {"desc_act": True}, found.rounded, shuffled)
    with pytest.raises(UnsupportedModel, match=r"gptq.*q_proj are ordered by activation"):
        load_model(config_of(tmp_path))


def test_a_checkpoint_without_a_weight_is_refused_by_its_name(tmp_path: Path) -> None:
    found = CASES["awq"]
    save_model("llama", tmp_path)
    rewrite(tmp_path, found.options, found.rounded, lambda _: {})
    with pytest.raises(UnsupportedModel, match=r"\(awq\) has no .*q_proj.weight"):
        load_model(config_of(tmp_path))


def test_codes_are_widened_where_nothing_multiplies_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = CASES["gptq"]
    save_model("apertus", tmp_path)
    rewrite(tmp_path, found.options, found.rounded, found.packed)
    with caplog.at_level(logging.INFO):
        model = load_model(config_of(tmp_path))
    assert model.weights.quantized_by is None
    assert "nothing multiplies codes in layers that are not fused: Apertus" in caplog.text
    assert "quantized by gptq are widened to float32" in caplog.text
    caplog.clear()
    # Another device than a CPU, on which nothing is computed.
    monkeypatch.setattr("engine.model.original.EagerDecoder", lambda model, _: model)
    with caplog.at_level(logging.INFO):
        on_gpu = load_original(config_of(tmp_path), torch.device("meta"))
    assert on_gpu.quantized_by is None
    assert "quantized by gptq are widened to float32" in caplog.text
