"""`bench soak`: everything at once, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.service import soak


@pytest.mark.exhaustive
def test_a_short_soak_finds_every_figure_and_nothing_left(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["soak", "--model", str(model), "--json", str(out), "--minutes", "0.2"]
    monkeypatch.setattr("sys.argv", ["bench", *given, "--kill-seconds", "4"])
    monkeypatch.setattr("bench.service.soak._WARMING_SECONDS", 2.0)
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == soak.FIGURES.keys()
    for name in ("answers", "vanished", "refused", "engine_kills"):
        assert found[name] > 0
    assert not any(found[name] for name in soak._HARMFUL)
