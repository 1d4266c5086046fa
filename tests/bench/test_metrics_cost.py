"""What metrics and usage cost is told, every figure of it."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.service import metrics_cost


def test_every_figure_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", ["bench", "metrics", "--rounds", "1", "--json", str(out)])
    assert cli.main() == 0
    found = json.loads(out.read_text())["figures"]
    assert found.keys() == metrics_cost.FIGURES.keys()
    assert all(value > 0 for value in found.values())
