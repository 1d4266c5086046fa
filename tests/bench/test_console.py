"""What the console costs is told of a chat that streams, and of a wall."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.console import console


@pytest.mark.exhaustive
def test_loads_tasks_and_pictures_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("chromium") is None and shutil.which("chromium-browser") is None:
        pytest.skip("chromium is not installed")
    out = tmp_path / "figures.json"
    brief = ["--answer-kib", "2", "--cells", "6000", "--minutes", "0.02"]
    monkeypatch.setattr("sys.argv", ["bench", "console", *brief, "--json", str(out)])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == console.FIGURES.keys()
    assert 20 < found["first_load_kib"] <= 120
    assert found["second_load_kib"] < 10
    assert found["second_load_answers"] < found["first_load_answers"]
    assert 0 < found["first_paint_ms"] < found["can_type_ms"]
    assert found["longest_task_ms"] > 0
    assert found["wall_heap_after_mib"] > 0


def test_without_a_browser_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.common.browser.shutil.which", lambda _: None)
    monkeypatch.setattr("sys.argv", ["bench", "console"])
    assert cli.main() != 0
    assert "chromium is not installed" in "".join(capsys.readouterr())
