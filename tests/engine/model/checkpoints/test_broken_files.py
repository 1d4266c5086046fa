"""GGUF files that are cut off or say what cannot be: a sentence tells, before or as they load."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf import GGUFReader

from engine.api import UnsupportedModel
from engine.model.convert import open_whole, save_index, save_model
from tests.engine.model.checkpoints.test_gguf import write_file as write_dense_file
from tests.engine.model.checkpoints.test_gguf_experts import CASES, logits, write_file

TENSOR = b"blk.0.ffn_up_exps.weight"
"""Behind its name: the number of its dimensions, three of these, its type, its first byte."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    write_file(path, CASES["qwen3moe"])
    return path.read_bytes()


def behind(data: bytes, name: bytes, offset: int, kind: str, value: int) -> bytes:
    """The file with another number at so many bytes behind a name."""
    place = data.index(name) + len(name) + offset
    new = struct.pack(f"<{kind}", value)
    return data[:place] + new + data[place + len(new) :]


def opened(data: bytes, folder: Path) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    made = folder / "folder"
    made.mkdir()
    save_index(path, open_whole(path), made)
    return made


@pytest.mark.parametrize("part", [0.0, 0.001, 0.003, 0.5, 0.9999])
def test_a_file_that_is_cut_off_is_no_whole_one(part: float, whole: bytes, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no whole GGUF file"):
        opened(whole[: int(part * len(whole))], tmp_path)


@pytest.mark.parametrize(
    ("name", "offset", "kind", "value", "told"),
    [
        (b"GGUF", 4, "Q", 1 << 40, "no whole GGUF file"),  # tensors
        (b"GGUF", 12, "Q", 1 << 40, "no whole GGUF file"),  # fields
        (b"GGUF", 20, "Q", 1 << 62, "no whole GGUF file"),  # bytes of a name
        (TENSOR, 4, "Q", 1 << 62, "no whole GGUF file"),
        (TENSOR, 28, "I", 99, "no whole GGUF file"),
        (TENSOR, 32, "Q", 1 << 40, "no whole GGUF file"),
        (TENSOR, 32, "Q", 8, "in one place"),
        (TENSOR, 28, "I", 1, "in one place"),  # of a wider type
        (b"qwen3moe.block_count", 4, "I", 1, "says that it has 1 layers, and has 3"),
        (b"qwen3moe.block_count", 4, "I", 1 << 20, "says that it has 1048576 layers"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(
    name: bytes, offset: int, kind: str, value: int, told: str, whole: bytes, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=told):
        opened(behind(whole, name, offset, kind, value), tmp_path)


@pytest.mark.parametrize(
    ("name", "offset", "kind", "value", "told"),
    [
        (TENSOR, 4, "Q", 0, "experts.0 do not fit each other"),  # inputs
        (b"qwen3moe.expert_count", 4, "I", 9, "no .*experts.4.gate_proj"),
        (b"qwen3moe.embedding_length", 4, "I", 32, "of shape"),
    ],
)
def test_what_does_not_fit_the_model_is_told_as_it_loads(
    name: bytes, offset: int, kind: str, value: int, told: str, whole: bytes, tmp_path: Path
) -> None:
    made = opened(behind(whole, name, offset, kind, value), tmp_path)
    for quantize in ("auto", "none"):
        with pytest.raises(UnsupportedModel, match=told):
            logits(made, quantize=quantize)


def test_a_file_that_lacks_a_weight_is_not_widened(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_dense_file(path, "llama")
    save_model(path, tmp_path / "whole")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.attn_norm.weight", b"blk.1.attn_n0rm.weight"))
    with pytest.raises(SystemExit, match=r"has no .*layers\.1\.input_layernorm\.weight"):
        save_model(path, tmp_path / "lacking")


def test_weights_that_are_no_numbers_are_told_so(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    (norm,) = (one for one in GGUFReader(path).tensors if one.name == "blk.1.attn_norm.weight")
    start = int(norm.data_offset)
    spoilt = whole[:start] + struct.pack("<f", float("nan")) + whole[start + 4 :]
    with pytest.raises(UnsupportedModel, match="are no numbers: its weights are broken"):
        logits(opened(spoilt, tmp_path))
