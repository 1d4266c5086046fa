"""Which way kernels multiply: as configured, or as this machine was found to be fastest, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.model import kernel_paths
from engine.model.kernel_paths import choose_kernel_paths
from kernels.native import paths

SLOW: dict[paths.Kind, paths.Path] = dict.fromkeys(paths.KINDS, "floats")


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A note for each time that the machine was measured; it always finds float32 fastest."""
    notes: list[int] = []

    def measure() -> dict[paths.Kind, paths.Path]:
        notes.append(1)
        return dict(SLOW)

    monkeypatch.setattr(paths, "measure", measure)
    kernel_paths._measured.clear()
    yield notes
    kernel_paths._measured.clear()
    paths.use(dict.fromkeys(paths.KINDS, paths.PATHS[-1]))


def choose(
    cache: Path | None, threads: int = 2, path: str = "auto"
) -> dict[paths.Kind, paths.Path]:
    """As an engine that has just been started."""
    kernel_paths._measured.clear()
    folder = None if cache is None else str(cache)
    config = EngineConfig(model_path="", cache_dir=folder, kernel_paths=path)
    return choose_kernel_paths(config, threads)


def test_a_machine_is_measured_at_the_first_start_alone(
    tmp_path: Path, measured: list[int]
) -> None:
    cache = tmp_path / "not" / "there" / "yet"
    assert choose(cache) == choose(cache) == SLOW
    assert len(measured) == 1
    choose(cache, threads=1)
    assert len(measured) == 2, "another number of threads is another machine"
    choose(cache)
    assert len(measured) == 2, "and the first one is still known"


@pytest.mark.parametrize("content", [b"", b"{", b'{"x": {"bfloat16": "magic"}}', b"[1]"])
def test_a_file_that_cannot_be_read_is_replaced(
    content: bytes, tmp_path: Path, measured: list[int]
) -> None:
    (tmp_path / "kernel_paths.json").write_bytes(content)
    assert choose(tmp_path) == choose(tmp_path) == SLOW
    assert len(measured) == 1


def test_without_a_folder_a_process_measures_once(measured: list[int]) -> None:
    config = EngineConfig(model_path="")
    assert choose_kernel_paths(config, 2) == choose_kernel_paths(config, 2) == SLOW
    assert len(measured) == 1


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert choose(file) == SLOW


@pytest.mark.parametrize("path", paths.PATHS)
def test_a_configured_path_or_the_best_one_below_it_is_used(
    path: paths.Path, measured: list[int]
) -> None:
    chosen = choose(None, path=path)
    assert not measured
    for kind, used in chosen.items():
        available = paths.available(kind)
        assert used in available
        assert used == path or path not in available


def test_a_path_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel_paths"):
        EngineConfig(model_path="", kernel_paths="magic")  # type: ignore[arg-type]
