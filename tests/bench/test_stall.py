"""`bench stall`: a neighbour's stream and the event loop, watched under attack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.service import stall
from bench.service.stall import Sizes


@pytest.mark.exhaustive
def test_the_loop_and_a_neighbour_are_watched_while_another_tenant_attacks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["stall", "--model", str(model), "--json", str(out), "--at-once", "2"]
    given += ["--body-bytes", "200000", "--context-tokens", "4000", "--step-ms", "10"]
    monkeypatch.setattr("sys.argv", ["bench", *given, "--only", "frames"])
    monkeypatch.setattr("bench.service.stall._CALM_SECONDS", 0.5)
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == stall.FIGURES.keys()
    assert 5 < found["neighbour_gap_usual_ms"] < 1000
    assert found["neighbour_gap_ms_max"] >= found["neighbour_gap_usual_ms"]
    assert found["peak_rss_mib"] > 50


def test_every_attack_is_as_large_as_it_may_be_and_no_larger() -> None:
    sizes = Sizes(body_bytes=4_190_000, context_tokens=131_072, at_once=3, step_us=1000)
    attacks = list(sizes.attacks())
    assert len({attack.name for attack in attacks}) == len(attacks)
    assert all(len(attack.bodies) == 3 for attack in attacks)
    largest = [len(body) for attack in attacks for body in attack.bodies]
    assert 4_000_000 < max(largest) <= 4 * 1024 * 1024
