"""Loads with and without speculation, timed on a small real model."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.speculate import speculate


@pytest.mark.parametrize("draft", [[], ["--draft-model", "stranger"]])
def test_it_times_loads_with_and_without_and_tells_the_least(
    draft: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["speculate", "--model", str(model), "--json", str(out)]
    given += ["--threads", "1", "--chats", "2", "--tokens", "6", "--rounds", "1"]
    given += ["--loads", "chat", "batch_8", "--questions", str(tmp_path / "none")]
    monkeypatch.setattr("sys.argv", ["bench", *given, *draft])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    speedups = {"speedup_chat", "speedup_batch_8"}
    assert found.keys() == {
        *speedups,
        "speedup_min",
        "accepted_share_chat",
        "calibration_seconds",
    }
    assert found.keys() <= speculate.FIGURES.keys()
    assert found["speedup_min"] == min(found[name] for name in speedups) > 0
    assert 0 <= found["accepted_share_chat"] <= 1
