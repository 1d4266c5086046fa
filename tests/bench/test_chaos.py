"""What streams lose while parts of a cluster are killed and halted, on a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as cli


def test_every_figure_has_a_meaning_and_every_part_its_row() -> None:
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from bench.cluster import chaos

    seen = {"calm": chaos.Seen(gap=0.5, num_answers=2)}
    for part in chaos.PARTS:
        for how in ("killed", "halted"):
            late = 2.5 if part == "head" else None
            seen[f"{part}_{how}"] = chaos.Seen(gap=3.0, num_answers=2, unready_seconds=late)
    result = chaos.report(seen)
    assert result.figures.keys() == chaos.FIGURES.keys()
    assert result.tables[0].row_count == len(seen)
    assert not result.failure
    seen["door_killed"].num_cut = 3  # whose sockets it takes along
    assert not chaos.report(seen).failure
    seen["head_killed"].num_cut = 1
    seen["engine_killed"].num_wrong = 2
    failure = chaos.report(seen).failure
    assert failure == "engine killed: 2 wrong, 0 cut; head killed: 0 wrong, 1 cut"
    seen = {"calm": chaos.Seen(), "head_killed": chaos.Seen(unready_seconds=7.0)}
    seen["head_halted"] = chaos.Seen()
    failure = chaos.report(seen).failure
    assert failure == "head halted: never told of; head killed: told of after 7.0 s"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_what_is_killed_or_stands_still_costs_no_stream_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    out, parts, halted = tmp_path / "figures.json", ("replica", "engine"), 8
    given = ["cluster", "--chaos", "--parts", *parts, "--streams", "4", "--output-tokens", "32"]
    given += ["--halt-seconds", str(halted), "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0  # none cut, none wrong
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert all(found[f"gap_s_{part}_halted"] < halted - 1 for part in parts)
