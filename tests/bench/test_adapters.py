"""What adapters cost, measured on a small real model."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.adapters import adapters, flood, peers
from bench.peers.peer import read_peers
from tests.bench import stand_in
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
    given += ["--parts", "throughput", "loading", "activated", "zipf"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == adapters.FIGURES.keys() - peers.FIGURES.keys() - flood.FIGURES.keys()
    assert 0 < found.pop("zipf_found_loaded") < 1
    assert min(found.values()) > 0


@pytest.mark.exhaustive
def test_a_flood_of_adapters_is_seen_by_neighbours(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["adapters", "--parts", "flood", "--model", str(model), "--json", str(out)]
    given += ["--rounds", "1", "--flooding", "2", "--flood-adapters", "6", "--probes", "4"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == flood.FIGURES.keys()
    for name in ("loading_gap_ms", "loading_gap_ms_p90"):  # differences, of next to nothing here
        assert abs(found.pop(name)) < 1000
    assert min(found.values()) > 0


def test_peers_are_asked_for_the_same_adapters_by_names_of_their_own(
    model: Path, peer: stand_in.Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, file = tmp_path / "figures.json", tmp_path / "peers.toml"
    file.write_text(
        f'[[peer]]\nname = "other"\nmodel = "m"\nurl = "{peer.url}"\n'
        'adapter = \'{"lora": [{"id": {number}}]}\'\n'
    )
    given = ["adapters", "--parts", "peers", "--peers", str(file), "--model", str(model)]
    given += ["--json", str(out), "--streams", "9", "--output", "3", "--rounds", "1", "--rank", "4"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    for kind in ("base", "adapters"):
        ours, theirs = (found[f"tokens_per_s_{kind}_{one}"] for one in ("partywall", "other"))
        assert found[f"peer_ratio_{kind}"] == pytest.approx(ours / theirs)
    asked = [
        body["lora"][0]["id"] for body in peer.bodies if body["max_tokens"] == 3 and "lora" in body
    ]
    assert sorted(asked) == [0, *range(8)]
    assert sum("lora" not in body and body["max_tokens"] == 3 for body in peer.bodies) == 9


def test_peers_have_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "adapters", "--parts", "peers"])
    assert cli.main() == 1


def test_the_example_names_peers_that_have_adapters() -> None:
    example = read_peers(Path(peers.__file__).with_name("peers.example.toml"))
    assert {json.loads(one.adapter.replace("{number}", "3")) != {} for one in example} == {True}
