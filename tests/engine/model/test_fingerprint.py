"""Block hashes change with whatever changes KV."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.model import fingerprint as fingerprint_module
from engine.model.fingerprint import model_fingerprint


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of two files of weights, as far as fingerprints look; the first is of three parts."""
    monkeypatch.setattr(fingerprint_module, "_PART_BYTES", 16 << 10)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model-1.safetensors").write_bytes(bytes(40 << 10))
    (folder / "model-2.safetensors").write_bytes(b"x" * 100)
    return folder


def fingerprint(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> bytes:
    return model_fingerprint(EngineConfig(model_path=str(folder), **options), dtype)


def test_where_last_bits_matter_what_they_hang_on_changes_the_hashes(folder: Path) -> None:
    config = EngineConfig(model_path=str(folder))
    ways = ["", "by words", "by floats"]
    found = {model_fingerprint(config, torch.float32, way) for way in ways}
    assert len(found) == 3
    assert fingerprint(folder) in found


def test_what_changes_kv_changes_the_hashes(folder: Path) -> None:
    assert fingerprint(folder) == fingerprint(folder, kv_memory_bytes=2**20, prefix_grouping=False)
    others = [{"quantize": "int8"}, {"quantize": "int4"}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8"}]
    found = {
        fingerprint(folder),
        fingerprint(folder, torch.bfloat16),
        *(fingerprint(folder, **one) for one in others),
    }
    assert len(found) == 6
    (folder / "config.json").write_text('{"rope_theta": 1}')
    assert fingerprint(folder) not in found


@pytest.mark.parametrize("place", [0, 20 << 10, (40 << 10) - 1])
@pytest.mark.parametrize("is_cached", [False, True])
def test_one_byte_of_the_weights_changes_the_hashes_though_size_and_time_stay(
    folder: Path, tmp_path: Path, place: int, is_cached: bool
) -> None:
    options = {"cache_dir": str(tmp_path / "cache")} if is_cached else {}
    before = fingerprint(folder, **options)
    file = folder / "model-1.safetensors"
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(b"1")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert fingerprint(folder, **options) != before


def test_weights_that_have_not_changed_are_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cache_dir": str(tmp_path / "not" / "there" / "yet")}
    first = fingerprint(folder, **options)
    read: list[Path] = []
    digest = fingerprint_module._digest

    def counted(file: Path, size: int) -> str:
        read.append(file)
        return digest(file, size)

    monkeypatch.setattr(fingerprint_module, "_digest", counted)
    assert fingerprint(folder, **options) == first
    assert read == []
    (folder / "model-2.safetensors").write_bytes(b"y" * 100)
    assert fingerprint(folder, **options) != first
    assert read == [folder / "model-2.safetensors"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b'{"a": 1}', b'{"\xff": ["", ""]}'])
def test_a_cache_that_cannot_be_used_changes_nothing(
    folder: Path, tmp_path: Path, content: bytes | None
) -> None:
    cache = tmp_path / "cache"
    if content is None:
        cache.write_text("a file in the folder's place")
    else:
        cache.mkdir()
        (cache / "weights.json").write_bytes(content)
    assert fingerprint(folder, cache_dir=str(cache)) == fingerprint(folder)


def test_a_folder_whose_name_is_no_text_is_served_and_not_kept(
    folder: Path, tmp_path: Path
) -> None:
    expected = fingerprint(folder)
    renamed = folder.rename(tmp_path / os.fsdecode(b"model-\xff"))
    cache = tmp_path / "cache"
    assert fingerprint(renamed, cache_dir=str(cache)) == expected
    assert not cache.exists()
