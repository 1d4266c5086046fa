"""The fastest way to compute is found: of paths and of numbers of threads."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from kernels.native import library, measuring, paths

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    paths.use(dict.fromkeys(paths.KINDS, paths.PATHS[-1]))
    paths.use_tiles("small")
    library.set_threads(torch.get_num_threads())


def test_what_was_measured_is_there_and_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[paths.Kind, paths.Path] = {}
    use = paths.use

    def noted(chosen: dict[paths.Kind, paths.Path]) -> None:
        used.update(chosen)
        use(chosen)

    monkeypatch.setattr(paths, "use", noted)
    chosen = measuring.fastest_paths()
    assert used == chosen
    assert all(chosen[kind] in paths.available(kind) for kind in paths.KINDS)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"floats": 1.0, "words": 0.5}, "words"),
        ({"floats": 0.5, "words": 1.0}, "floats"),
        ({"floats": 0.99, "words": 1.0}, "words"),  # no more than noise
        ({"floats": 0.5, "words": 1.0, "tiles": 0.4}, "tiles"),
        ({"floats": 0.5, "words": 0.3, "tiles": 0.4}, "words"),
    ],
)
def test_the_fastest_path_is_chosen(
    seconds: dict[paths.Path, float], best: paths.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "available", lambda kind: list(seconds))
    monkeypatch.setattr(measuring, "_times", lambda ways, use, examples, clock: seconds)
    assert measuring.fastest_paths() == dict.fromkeys(paths.KINDS, best)


class Computation:
    """One that takes simulated time, and more of it while another process computes, too."""

    def __init__(self, num_disturbed: int) -> None:
        self.rng = random.Random(0)
        self.now, self.num_runs, self.num_disturbed = 0.0, 0, num_disturbed
        self.way = "slow"

    def __call__(self) -> None:
        is_disturbed = self.num_runs < self.num_disturbed and self.way == "fast"
        factor = self.rng.uniform(1.5, 4.0) if is_disturbed else self.rng.uniform(1.0, 1.01)
        self.now += factor * {"fast": 1.0, "slow": 1.3}[self.way]
        self.num_runs += 1

    def use(self, way: str) -> None:
        self.way = way


@pytest.mark.parametrize(("num_disturbed", "num_runs"), [(0, 14), (16, 22)])
def test_what_was_disturbed_is_timed_more_often(num_disturbed: int, num_runs: int) -> None:
    compute, ways = Computation(num_disturbed), ["slow", "fast"]
    chosen = measuring._fastest(ways, compute.use, [compute], lambda: compute.now)
    assert (chosen, compute.num_runs) == ("fast", num_runs)


def test_what_never_settles_is_timed_for_so_long_only() -> None:
    compute = Computation(10**6)
    measuring._fastest(["slow", "fast"], compute.use, [compute], lambda: compute.now)
    assert compute.num_runs == 2 * measuring._REPEATS.stop


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"small": 1.0, "large": 0.9}, "large"),
        ({"small": 1.0, "large": 0.99}, "small"),  # no more than noise
    ],
)
def test_large_tiles_are_used_where_they_are_faster(
    seconds: dict[paths.TileSize, float], best: paths.TileSize, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(paths, "use_tiles", used.append)
    monkeypatch.setattr(measuring, "_times", lambda ways, use, examples, clock: seconds)
    assert measuring.fastest_tiles() == best
    assert used == [best]


def test_tiles_are_timed_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    set_threads = library.set_threads

    def noted(count: int) -> None:
        counts.append(count)
        set_threads(count)

    monkeypatch.setattr(library, "set_threads", noted)
    assert measuring.fastest_tiles() in paths.TILE_SIZES
    assert counts == [1, torch.get_num_threads()]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({4: 1.0, 8: 0.7}, 8),
        ({4: 1.0, 8: 0.97}, 4),  # no more than noise
        ({4: 0.9, 8: 1.0}, 4),
    ],
)
def test_more_threads_are_used_where_they_are_faster(
    seconds: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_times", lambda ways, use, examples, clock: seconds)
    used: list[int] = []
    monkeypatch.setattr(library, "set_threads", used.append)
    assert measuring.fastest_threads([8, 4]) == best
    assert used[-1] == best


def test_one_number_of_threads_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_times", None)
    assert measuring.fastest_threads([3]) == 3


def test_threads_are_timed_where_there_is_a_choice() -> None:
    assert measuring.fastest_threads([1, 2]) in (1, 2)


def test_where_nothing_is_built_there_is_nothing_to_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "available", lambda: False)
    assert measuring.fastest_paths() == dict.fromkeys(paths.KINDS, "floats")
    assert measuring.fastest_tiles() == "small"
