"""`bench hybrid --parts served`, of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bench import __main__ as cli
from bench.hybrid.served import served, turns
from tests.engine.model.tiny_families import tiny_config, tiny_model


def test_turns_find_all_but_what_is_new(tmp_path: Path) -> None:
    tiny_model(
        tiny_config("lfm2", vocab_size=40_000, max_position_embeddings=4096)
    ).save_pretrained(tmp_path)
    core = turns.core_of(tmp_path, "bf16")
    found = turns.chats(core, 0)
    assert len(found) == 48
    assert [one.found_tokens for one in found[:4]] == [0] * 4, "no prompt is known"
    for turn in found[4:]:
        assert turn.found_tokens >= 400
    for before, turn in zip(found, found[8:], strict=False):
        assert before.prompt_tokens - turn.found_tokens <= 16
    assert turns.without_history(core, 0, [20, 30]) > 0


@pytest.mark.exhaustive
def test_every_figure_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(folder: Path, _: object, __: int, tokenizer_of: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
        tokenizer.save_pretrained(folder)
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096}
        tiny_model(tiny_config("qwen3_5_text", **sizes)).save_pretrained(folder)

    monkeypatch.setattr(served, "write_folder", tiny)
    monkeypatch.setattr(served, "_COLD_TOKENS", 64)
    monkeypatch.setattr(served, "_OUTPUT_TOKENS", 4)
    out = tmp_path / "figures.json"
    parts = ["--parts", "served", "--rounds", "1", "--timeout-seconds", "60"]
    monkeypatch.setattr("sys.argv", ["bench", "hybrid", "--json", str(out), *parts])
    assert cli.main() == 0
    figures = json.loads(out.read_text())["figures"]
    wanted = {"next_turn_ttft_ratio", "hits_over_dense", "tokens_per_s_ratio", "cold_ttft_ratio"}
    assert wanted <= figures.keys()
    assert 0.9 < figures["hits_over_dense"] <= 1
