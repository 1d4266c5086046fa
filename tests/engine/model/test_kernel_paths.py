"""Which way kernels multiply: as configured, or as this machine was found to be fastest, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.model import kernel_paths
from engine.model.kernel_paths import (
    Choice,
    choose_kernel_paths,
    known_choice,
    measured_row_costs,
    measured_step_tokens,
    rounding,
)
from kernels.native import library, measuring, paths

SLOW = Choice(dict.fromkeys(paths.KINDS, "floats"), "large", 2)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """A note for each time that the machine was measured, of the numbers of threads it was for.

    It always finds float32, large tiles and the fewest threads fastest.
    """
    notes: list[list[int]] = []

    def fastest_threads(counts: list[int]) -> int:
        notes.append(counts)
        return min(counts)

    monkeypatch.setattr(measuring, "fastest_paths", lambda: dict(SLOW.paths))
    monkeypatch.setattr(measuring, "fastest_tiles", lambda: SLOW.tiles)
    monkeypatch.setattr(measuring, "fastest_threads", fastest_threads)
    threads = torch.get_num_threads()
    kernel_paths._measured.clear()
    yield notes
    kernel_paths._measured.clear()
    paths.use(dict.fromkeys(paths.KINDS, paths.PATHS[-1]))
    paths.use_tiles("small")
    torch.set_num_threads(threads)
    library.set_threads(threads)


def choose(cache: Path | None, threads: int | None = 2, path: str = "auto") -> Choice:
    """As an engine that has just been started."""
    kernel_paths._measured.clear()
    folder = None if cache is None else str(cache)
    config = EngineConfig(
        model_path="",
        cache_dir=folder,
        threads=threads,
        kernel_paths=path,  # type: ignore[arg-type]
    )
    return choose_kernel_paths(config)


def test_a_machine_is_measured_at_the_first_start_alone(
    tmp_path: Path, measured: list[list[int]]
) -> None:
    cache = tmp_path / "not" / "there" / "yet"
    assert choose(cache) == choose(cache) == SLOW
    assert len(measured) == 1
    choose(cache, threads=1)
    assert len(measured) == 2, "another number of threads is another machine"
    choose(cache)
    assert len(measured) == 2, "and the first one is still known"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"x": {"paths": {"bfloat16": "magic"}, "tiles": "small", "threads": 2}}',
        b'{"x": {"paths": {"bfloat16": "words"}, "tiles": "huge", "threads": 2}}',
        b'{"x": {"bfloat16": "words", "int8": "words", "attention": "words"}}',
        b"[1]",
        b'{"\xff": {}}',
    ],
)
def test_a_file_that_cannot_be_read_is_replaced(
    content: bytes, tmp_path: Path, measured: list[list[int]]
) -> None:
    (tmp_path / "kernel_paths.json").write_bytes(content)
    assert choose(tmp_path) == choose(tmp_path) == SLOW
    assert len(measured) == 1


def test_without_a_folder_a_process_measures_once(measured: list[list[int]]) -> None:
    config = EngineConfig(model_path="", threads=2)
    assert choose_kernel_paths(config) == choose_kernel_paths(config) == SLOW
    assert len(measured) == 1


def test_last_bits_hang_on_how_products_are_computed_and_on_nothing_else() -> None:
    words = structs.replace(SLOW, paths=SLOW.paths | {"int8": "words"})
    assert rounding(words) != rounding(SLOW)
    same = structs.replace(
        SLOW, paths=SLOW.paths | {"attention": "words"}, tiles="small", threads=1
    )
    assert rounding(same) == rounding(SLOW)


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert choose(file) == SLOW


def test_how_long_steps_are_is_measured_once_for_each_model(tmp_path: Path) -> None:
    notes: list[str] = []

    def tokens(model: str) -> int:
        kernel_paths._measured.clear()
        config = EngineConfig(model_path="", cache_dir=str(tmp_path), threads=2)

        def measure() -> int:
            notes.append(model)
            return 256 * len(notes)

        return measured_step_tokens(config, model, measure)

    assert [tokens("one"), tokens("one"), tokens("two"), tokens("one")] == [256, 256, 512, 256]
    assert notes == ["one", "two"]
    assert choose(tmp_path).paths == SLOW.paths, "and nothing else is lost"


def test_what_rows_cost_is_measured_once_for_each_model_and_kept_beside_the_rest(
    tmp_path: Path,
) -> None:
    found = RowCosts(((1, 0.008), (8, 0.0104)), per_key=1e-9)
    config = EngineConfig(model_path="", cache_dir=str(tmp_path), threads=2)
    assert measured_step_tokens(config, "float32", lambda: 512) == 512
    assert measured_row_costs(config, "one", lambda: found) == found
    kernel_paths._measured.clear()
    assert measured_row_costs(config, "one", lambda: pytest.fail("again")) == found
    assert measured_row_costs(config, "two", lambda: FREE_ROWS) == FREE_ROWS
    assert choose(tmp_path).row_costs == {"one": found, "two": FREE_ROWS}
    assert measured_step_tokens(config, "float32", lambda: pytest.fail("again")) == 512


@pytest.mark.parametrize(
    "points", [(), ((1, 0.0), (8, 0.01)), ((1, 0.01), (8, 0.01))], ids=["none", "no time", "flat"]
)
def test_rows_that_were_timed_while_disturbed_are_timed_again(
    points: tuple[tuple[int, float], ...], tmp_path: Path
) -> None:
    disturbed, found = RowCosts(points), RowCosts(((1, 0.008), (8, 0.0104)))
    config = EngineConfig(model_path="", cache_dir=str(tmp_path), threads=2)
    assert measured_row_costs(config, "one", lambda: disturbed) == disturbed
    assert measured_row_costs(config, "one", lambda: found) == found
    # Nor are they believed where an earlier version has kept them.
    kernel_paths._keep(config, structs.replace(choose(tmp_path), row_costs={"one": disturbed}))
    kernel_paths._measured.clear()
    assert measured_row_costs(config, "one", lambda: found) == found


@pytest.mark.parametrize("path", paths.PATHS)
def test_a_configured_path_or_the_best_one_below_it_is_used(
    path: paths.Path, tmp_path: Path
) -> None:
    chosen = choose(tmp_path, path=path)
    assert not list(tmp_path.iterdir()), "there was nothing to measure"
    for kind, used in chosen.paths.items():
        available = paths.available(kind)
        assert used in available
        assert used == path or path not in available
    assert chosen.tiles == "small"


def test_where_cores_run_several_threads_their_number_is_measured_and_kept(
    tmp_path: Path, measured: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_paths, "thread_counts", lambda _: [1, 2])
    assert (
        choose(tmp_path, threads=None)
        == choose(tmp_path, threads=None)
        == Choice(SLOW.paths, "large", 1)
    )
    assert torch.get_num_threads() == 1
    assert measured == [[1, 2]]
    assert choose(tmp_path, threads=None, path="words").threads == 1
    assert measured == [[1, 2]] * 2, "by other paths another number may be faster"


def test_what_was_measured_can_be_asked_for(tmp_path: Path, measured: list[list[int]]) -> None:
    config = EngineConfig(model_path="", cache_dir=str(tmp_path), threads=2)
    assert known_choice(config) is None
    assert choose_kernel_paths(config) == known_choice(config)
    assert len(measured) == 1


def test_a_path_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="kernel_paths"):
        EngineConfig(model_path="", kernel_paths="magic")  # type: ignore[arg-type]
