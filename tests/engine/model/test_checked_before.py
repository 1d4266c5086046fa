"""A model that was found right is compared with its own layers again once anything differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import torch

from engine.api import EngineError
from engine.config import EngineConfig
from engine.model import self_check
from engine.model.kernel_paths import Choice
from engine.model.load import _paged_logits, load_model
from kernels.native import paths
from tests.engine.model.layers.test_fused import config_of
from tests.engine.model.test_model import save_model

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    save_model("llama", tmp_path / "model")
    return config_of(tmp_path / "model", cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def checks() -> Iterator[list[EngineConfig]]:
    """One for each load that compares."""
    found: list[EngineConfig] = []
    check = self_check.checked_logits

    def counted(*arguments: Any) -> torch.Tensor:
        found.append(arguments[0])
        return check(*arguments)

    with patch("engine.model.load.checked_logits", counted):
        yield found


def test_what_was_right_is_loaded_alike_and_not_compared_again(
    config: EngineConfig, checks: list[EngineConfig]
) -> None:
    first, second = load_model(config), load_model(config)
    assert len(checks) == 1
    assert second.logit_error == first.logit_error > 0
    assert torch.equal(*(_paged_logits(model, IDS) for model in (first, second)))


def test_without_a_cache_it_is_compared_each_time(
    config: EngineConfig, checks: list[EngineConfig]
) -> None:
    for _ in range(2):
        load_model(msgspec.structs.replace(config, cache_dir=None))
    assert len(checks) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("block_size", 16), ("dtype", "bfloat16"), ("quantize", "int8"), ("kv_dtype", "int8")],
        *[("batch_invariant", True), ("max_context_tokens", 40), ("kernel_paths", "words")],
    ],
)
def test_other_options_are_compared_anew(
    name: str, value: Any, config: EngineConfig, checks: list[EngineConfig]
) -> None:
    load_model(config)
    other = msgspec.structs.replace(config, **{name: value})
    for _ in range(2):
        load_model(other)
    assert len(checks) == 2


def test_other_weights_settings_code_or_machines_are_compared_anew(
    config: EngineConfig, checks: list[EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(config.model_path)
    load_model(config)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    load_model(config)
    (folder / "quantize_config.json").write_text("{}")
    load_model(config)
    monkeypatch.setattr(self_check, "_code", lambda: "another version")
    load_model(config)
    monkeypatch.setattr(self_check, "machine_name", lambda _: "another machine")
    load_model(config)
    load_model(config, by_kinds=True)
    assert len(checks) == 6


def test_the_code_is_that_of_the_engine_and_of_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {self_check._code.__wrapped__()}
    for folder in self_check._SOURCES:
        assert {file.name for file in folder.rglob("*.py")} & {"fused.py", "linear.py"}
        monkeypatch.setattr(self_check, "_SOURCES", [folder])
        found.add(self_check._code.__wrapped__())
    monkeypatch.setattr(torch, "__version__", "3")
    found.add(self_check._code.__wrapped__())
    assert len(found) == 4


def test_what_is_wrong_is_not_kept(config: EngineConfig, checks: list[EngineConfig]) -> None:
    for _ in range(2):
        with patch("engine.model.load._tolerance", return_value=0.0), pytest.raises(EngineError):
            load_model(config)
    assert len(checks) == 4, "with fused layers, and with the model's own"


def test_of_many_the_latest_are_kept(
    config: EngineConfig, checks: list[EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "_MOST_KEPT", 2)
    for size in (8, 16, 32, 16, 8):
        load_model(msgspec.structs.replace(config, block_size=size))
    assert len(checks) == 4, "the second time there are blocks of 16 they are known"


def test_kernels_that_multiply_another_way_are_compared_anew(
    config: EngineConfig, checks: list[EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowest = dict.fromkeys(paths.KINDS, paths.PATHS[0])
    ways = iter([None, None, Choice(slowest, paths.TILE_SIZES[0], 1)])
    monkeypatch.setattr(self_check, "known_choice", lambda _: next(ways))
    for _ in range(3):
        load_model(config)
    assert len(checks) == 2
