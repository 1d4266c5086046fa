"""First tokens after a restart, timed on a small real model that is killed and comes back."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.engine import restart
from tests.engine.model.test_model import save_model


@pytest.mark.exhaustive
def test_it_times_conversations_that_go_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path / "model")
    out = tmp_path / "figures.json"
    given = ["restart", "--model", str(tmp_path / "model"), "--json", str(out), "--threads", "1"]
    given += ["--tokens", "160", "--conversations", "2", "--restarts", "1", "--kv-memory-mib", "8"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == restart.FIGURES.keys()
    assert min(found.values()) > 0
    ratio = found["ttft_ms_restart"] / found["ttft_ms_warm"]
    assert found["ttft_ratio_restart_over_warm"] == pytest.approx(ratio)
