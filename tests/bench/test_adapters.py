"""What adapters cost, measured on a small real model."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.adapters import adapters
from tests.engine.model.test_model import save_model


@pytest.mark.exhaustive
def test_it_measures_streams_first_tokens_and_a_memory_that_holds_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path / "model")
    out = tmp_path / "figures.json"
    given = ["adapters", "--model", str(tmp_path / "model"), "--json", str(out), "--threads", "1"]
    given += ["--streams", "4", "--output", "4", "--rounds", "1", "--conversation", "96"]
    given += ["--adapters", "6", "--held", "2", "--requests", "9", "--kv-memory-mib", "16"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == adapters.FIGURES.keys()
    assert 0 < found.pop("zipf_found_loaded") < 1
    assert min(found.values()) > 0
