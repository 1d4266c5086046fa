"""What reuse inside blocks adds: conversations through the real scheduler, on scripted answers."""

import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.engine import reuse
from bench.registry import BenchError


def figures(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> dict[str, float]:
    out = folder / "figures.json"
    monkeypatch.setattr("sys.argv", ["bench", "reuse", "--json", str(out), *options])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    return found


def test_a_second_turn_finds_all_that_the_first_has_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tmp_path / "questions.jsonl"
    turns = ["Why is the sky blue?", "And at night?"]
    questions.write_text(json.dumps({"question_id": 1, "turns": turns}) + "\n")
    options = ["--questions", str(questions), "--answer-tokens", "50", "--block-sizes", "16"]
    found = figures(monkeypatch, tmp_path, *options)
    assert found.keys() == reuse.FIGURES.keys()
    assert 0 < found["cached_share_full_blocks"] < found["cached_share_in_block"] < 1
    assert 0 < found["in_block_tokens_per_request"] < 16 / 2
    assert found["copied_blocks_per_request"] == 1 / 2, "one conversation of two turns"


def test_without_a_file_the_conversations_are_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--questions", str(tmp_path / "none"), "--answer-tokens", "20"]
    found = figures(monkeypatch, tmp_path, *options, "--block-sizes", "64")
    assert found["cached_share_in_block"] > found["cached_share_full_blocks"] > 0


@pytest.mark.parametrize("text", ["", "no json", '{"id": 1}'])
def test_a_file_without_questions_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(text)
    with pytest.raises(BenchError, match="questions"):
        reuse.conversations(path)
