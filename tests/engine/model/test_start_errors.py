"""What an operator can mend is told as cause and remedy, in a line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from engine.api import EngineError
from engine.config import EngineConfig
from engine.model.errors import memory_for, reading
from engine.model.load import load_model
from engine.model.weights import ModelUnavailable, find_model, in_a_line
from tests.engine.model.test_model import save_model


def load(folder: Path, device: str = "cpu") -> None:
    load_model(EngineConfig(model_path=str(folder), device=device, dtype="float32"))


def test_weights_that_are_cut_off_or_missing_are_told_by_their_folder(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)
    with pytest.raises(ModelUnavailable, match=r"cannot be read as a model: .*; fetch its files"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(ModelUnavailable, match="cannot be read as a model"):
        load(tmp_path)


def test_a_config_that_is_no_json_is_told_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelUnavailable, match="cannot be read as a model"):
        load(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_before_weights_are_read(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"device: torch .*; have a driver"):
        load(tmp_path / "nothing", "cuda")


def test_lack_of_memory_is_told_with_what_it_was_for() -> None:
    for error in (OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()):
        told = pytest.raises(EngineError, match=r"not enough memory for a cache .*; lower it")
        with told, memory_for("a cache", "lower it"):
            raise error
    with pytest.raises(EngineError, match="not enough"), memory_for("a cache", "lower it"):
        torch.empty(2**50)
    with pytest.raises(MemoryError), reading("a folder"):
        raise MemoryError


def test_what_nobody_expects_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="a bug"), memory_for("a cache", "lower it"):
        raise RuntimeError("a bug")
    with pytest.raises(KeyError), reading("a folder"):
        raise KeyError("a bug")


def test_an_error_in_a_line_has_no_numbers_and_no_second_line() -> None:
    assert in_a_line(ValueError("It is bad:\nat line 3")) == "It is bad"
    assert in_a_line(FileNotFoundError(errno.ENOENT, "No such file", "/x")) == "/x: No such file"
    assert in_a_line(ValueError()) == "ValueError"


def test_a_model_is_found_where_it_lies_and_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no such folder"):
        find_model(str(tmp_path / "nothing"))
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        find_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)) == tmp_path
    assert find_model("nobody/nothing-of-the-kind") is None
    with pytest.raises(ModelUnavailable, match="neither a folder nor a hub id"):
        find_model("not/a/hub/id")
