"""Watching the KV cache: what it costs is told with a browser and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.service import wall


def test_without_a_browser_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    arguments = ["wall", "--blocks", "6000", "--seconds", "2", "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    monkeypatch.setattr("bench.common.browser.shutil.which", lambda _: None)
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    pictures = {"frame_ms_p95", "interval_ms_p95"}
    assert found.keys() == wall.FIGURES.keys() - pictures
    assert 0 < found["wall_kib_per_s"] < 50
    assert "chromium is not installed" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_browser_draws_what_the_stream_tells() -> None:
    found = wall._browser(6000)
    if isinstance(found, str):
        pytest.skip(found)
    assert found["frame_ms_p95"] > 0
    assert found["interval_ms_p95"] > 0
