"""The cost of lines: every figure is there, and nobody is held up."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.service import log_lines


def test_lines_are_timed_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "figures.json"
    monkeypatch.setattr(
        "sys.argv", ["bench", "log-lines", "--lines", "50", "--rounds", "1", "--json", str(out)]
    )
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == log_lines.FIGURES.keys()
    assert min(found.values()) > 0
    log = logging.getLogger("app.requests")
    assert (log.handlers, log.propagate) == ([], True)
