"""Both ways back of a preempted request, timed on a small real model."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.engine import recovery
from bench.engine.recovery import crossing
from bench.engine.resumption import Point
from tests.engine.model.test_model import save_model


def test_it_times_both_ways_and_says_what_auto_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path / "model")
    out = tmp_path / "figures.json"
    given = ["recovery", "--model", str(tmp_path / "model"), "--json", str(out), "--threads", "1"]
    given += ["--lengths", "64", "256", "--block-sizes", "8", "--lost", "16", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    ways = ("swap", "recompute", "auto")
    names = {f"{way}_ms_{context}" for way in ways for context in ("64", "256", "lost_16")}
    assert found.keys() == {"auto_over_best_max", "calibration_seconds", *names}
    assert found.keys() <= recovery.FIGURES.keys()
    assert found["auto_over_best_max"] >= 1
    for context in ("64", "256", "lost_16"):
        times = [found[f"{way}_ms_{context}"] for way in ways]
        assert min(times) > 0
        assert times[2] in times[:2], "auto takes the time of the way that it chose"


def test_the_crossing_is_where_both_ways_take_as_long() -> None:
    points = [
        Point(4096, 16, lost, {"swap": 10.0, "recompute": lost / 10}, "swap") for lost in (10, 1000)
    ]
    assert crossing(points) == pytest.approx(100)
    assert crossing(points[:1]) is None
    assert points[1].auto_over_best == 1
