"""The accuracy of quantized weights, measured on a model of random ones."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from bench import __main__ as cli
from bench.engine import quantize
from bench.registry import BenchError
from engine.model.layers import packing
from tests.engine.model.checkpoints import packers


def test_every_scheme_is_compared_with_float32(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, questions = tmp_path / "text.md", tmp_path / "questions.jsonl"
    text.write_text("A wall that two neighbours share is a party wall. " * 10)
    questions.write_text(json.dumps({"turns": ["Why is the sky blue?", "And at night?"]}) + "\n")
    out, original = tmp_path / "figures.json", packing.pack
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(model, checkpoint)
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    rounded = partial(packers.quantize, bits=4, group_size=32, symmetric=False, scale=torch.float16)
    packers.rewrite(checkpoint, gptq, rounded, partial(packers.pack_gptq, bits=4))
    options = ["--model", str(model), "--texts", str(text), str(questions), "--window", "32"]
    options += ["--checkpoint", str(checkpoint)]
    monkeypatch.setattr("sys.argv", ["bench", "quantize", "--json", str(out), *options])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == quantize.FIGURES.keys()
    sizes = {scheme: found[f"product_bytes_{scheme}"] for scheme in quantize._SCHEMES}
    assert sizes["float32"] == 2 * sizes["bfloat16"]
    assert sizes["float32"] > sizes["int8"] > sizes["int4"]
    assert sizes["bfloat16"] > sizes["checkpoint"]
    caches = {scheme: found[f"token_bytes_{scheme}"] for scheme in quantize._SCHEMES}
    assert (caches["float32"], caches["bfloat16"], caches["int8_kv"]) == (128, 64, 2 * (16 + 16))
    for scheme in ("bfloat16", "int8_kv", "int8", "int4", "checkpoint"):
        assert 0 < found[f"mean_kl_{scheme}"] < 0.01
        assert (
            (0.7 if scheme in ("int4", "checkpoint") else 0.9)
            < found[f"top1_agreement_{scheme}"]
            <= 1
        )
        perplexity = found[f"perplexity_{scheme}"]
        assert perplexity == pytest.approx(found["perplexity_float32"], rel=0.01)
    assert packing.pack is original


@pytest.mark.parametrize("content", ["", "{}", "no questions"])
def test_a_text_that_cannot_be_read_is_refused(
    content: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(content)
    with pytest.raises(BenchError, match="text"):
        quantize._windows(quantize._read([path]), model, 100, 10)
