"""What pictures cost, beside other servers that see."""

import argparse
import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.peers.peer import read_peers
from bench.pictures import peers, pictures
from tests.app.pictures.making import save_processor
from tests.bench import stand_in
from tests.engine.pictures.seeing_models import seeing_model


@pytest.mark.exhaustive
def test_it_measures_questions_streams_and_hostile_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["pictures", "--tiles", "1", "--rounds", "1", "--streams", "1", "--files", "9"]
    monkeypatch.setattr("sys.argv", ["bench", *given, "--seconds", "1", "--json", str(out)])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == pictures.FIGURES.keys() - peers.FIGURES.keys()
    assert found["hostile_crashes"] == 0
    assert found["second_question_ttft_ratio"] < 1


def test_peers_are_shown_the_same_pictures(peer: stand_in.Peer, tmp_path: Path) -> None:
    folder, file = tmp_path / "model", tmp_path / "peers.toml"
    seeing_model("smolvlm", folder)
    save_processor("smolvlm", folder)
    file.write_text(f'[[peer]]\nname = "other"\nmodel = "m"\nurl = "{peer.url}"\n')
    options = argparse.Namespace(peers=file, peer_chats=2, rounds=1, dtype="float32")
    found = peers.measure(options, folder)
    for name in ("first", "second"):
        ours, theirs = (found[f"{name}_ms_{one}"] for one in ("partywall", "other"))
        assert found[f"peer_ratio_{name}"] == pytest.approx(theirs / ours)
    shown = [
        part["image_url"]["url"][:30]
        for body in peer.bodies
        for part in body["messages"][-1]["content"]
        if isinstance(part, dict) and part["type"] == "image_url"
    ]
    assert len(shown) == 1 + 2 * 2 + 2 * 2
    assert set(shown) == {"data:image/jpeg;base64,/9j/4AAQ"[:30]}


def test_peers_have_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "pictures", "--parts", "peers"])
    assert cli.main() == 1


def test_the_example_names_peers_that_are_given_the_model() -> None:
    example = read_peers(Path(peers.__file__).with_name("peers.example.toml"))
    assert all("{folder}" in one.command for one in example)
