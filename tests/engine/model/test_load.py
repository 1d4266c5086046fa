"""What is made of a folder: layers that are checked, options that can be had, types of weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.api import EngineError
from engine.config import EngineConfig
from engine.model.layers import fused as decoder
from engine.model.layers.description import Description
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.original import choose_dtype
from engine.model.self_check import SAMPLE_TOKENS
from tests.engine.model.layers.test_fused import config_of
from tests.engine.model.test_model import SMALL, save_model


def test_layers_that_turn_out_wrong_give_way_to_the_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_model("llama", tmp_path)
    describe = decoder.describe

    def wrong(*arguments: Any) -> Description:
        description = describe(*arguments)
        description.norm.weight.mul_(-1)
        return description

    monkeypatch.setattr(decoder, "describe", wrong)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        model = load_model(config_of(tmp_path))
    assert not model.weights.is_fused
    assert "fused layers differ" in caplog.text


@pytest.mark.parametrize("forgets_windows", [False, True])
def test_fused_layers_are_compared_with_windows_that_the_sample_leaves(
    forgets_windows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One longer than the sample would not be missed there."""
    config = AutoConfig.for_model("mistral", **SMALL, sliding_window=4 * SAMPLE_TOKENS)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    describe = decoder.describe

    def without_windows(model: Any, calls: Any, most: int | None) -> Description:
        return describe(model, [replace(call, sliding_window=None) for call in calls], most)

    if forgets_windows:
        monkeypatch.setattr(decoder, "describe", without_windows)
    with torch.no_grad():
        weights = load_model(config_of(tmp_path)).weights
    assert weights.is_fused != forgets_windows
    if isinstance(weights.decoder, FusedDecoder):
        windows = [layer.options.sliding_window for layer in weights.decoder._layers]
        assert windows == [4 * SAMPLE_TOKENS] * len(windows), "they are whole again"
    assert [call.sliding_window for call in weights.layout.calls] == [4 * SAMPLE_TOKENS] * 3


def test_options_that_cannot_be_had_are_refused_by_name(tmp_path: Path) -> None:
    save_model("gpt_neox", tmp_path)
    assert not load_model(config_of(tmp_path)).weights.is_fused
    with pytest.raises(EngineError, match="quantize: not for this model: GPTNeoXForCausalLM"):
        load_model(config_of(tmp_path, quantize="int8"))
    for scheme in ("int8", "int4"):
        on_gpu = msgspec.structs.replace(config_of(tmp_path, quantize=scheme), device="cuda")
        with (
            patch.object(torch.cuda, "is_available", return_value=True),
            pytest.raises(EngineError, match=f"quantize: {scheme} weights are for CPUs"),
        ):
            load_model(on_gpu)
    with pytest.raises(
        EngineError, match="batch_invariant: not for this model: GPTNeoXForCausalLM"
    ):
        load_model(config_of(tmp_path, batch_invariant=True))
    save_model("qwen3_next", tmp_path / "experts")
    with pytest.raises(
        EngineError, match=r"batch_invariant: not for this model: 'model.layers.0.mlp.gate' mult"
    ):
        load_model(config_of(tmp_path / "experts", batch_invariant=True))
    weights = load_model(config_of(tmp_path)).weights
    calls = tuple(replace(call, head_dim=24) for call in weights.layout.calls)
    odd = replace(weights, layout=replace(weights.layout, calls=calls))
    with pytest.raises(EngineError, match="kv_dtype: heads of 24 dimensions"):
        PagedModel(odd, 8, "int8")
    with pytest.raises(EngineError, match="kv_dtype: a cache of fp8 needs a GPU"):
        load_model(config_of(tmp_path, kv_dtype="fp8"))
    for field in ("quantize", "kv_dtype"):
        with pytest.raises(ValueError, match=f"{field}: 'int2' is none of"):
            config_of(tmp_path, **{field: "int2"})


@pytest.mark.parametrize(("compiled", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_the_type_of_choice_is_what_is_multiplied_fastest(
    compiled: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.original.library.available", lambda: compiled)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    config = EngineConfig(model_path=str(tmp_path))
    assert choose_dtype(config, torch.device("cpu")) == getattr(torch, expected)
    chosen = EngineConfig(model_path=str(tmp_path), dtype="float16")
    assert choose_dtype(chosen, torch.device("cpu")) == torch.float16


@pytest.mark.parametrize(("dtype", "inner"), [("float32", 42), ("bfloat16", 44)])
def test_experts_have_widths_of_which_no_rows_are_whole_vectors(
    dtype: str, inner: int, tmp_path: Path
) -> None:
    sizes = SMALL | {"intermediate_size": inner, "num_local_experts": 3}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **sizes))
    model.save_pretrained(tmp_path)
    config = msgspec.structs.replace(config_of(tmp_path), dtype=dtype)
    with torch.no_grad():
        assert load_model(config).weights.is_fused
