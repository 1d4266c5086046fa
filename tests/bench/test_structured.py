"""Batches that are held to schemas and free ones, timed on a small model with a real tokenizer."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.formats import structured


def test_it_times_masks_and_batches_both_ways(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["structured", "--model", str(model), "--json", str(out), "--threads", "1"]
    given += ["--batches", "2", "--tokens", "6", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() >= structured._OF_ENGINE.keys()
    assert 0 < found["mask_us_p50_llguidance"] <= found["mask_us_p99_llguidance"]
    assert found["refused_llguidance"] == 0
    assert 0 < found["mask_us_p50"] <= found["mask_us_p99"]
    assert found["tokens_per_s_ratio"] > 0
    assert found["first_mask_ms"] > 0
