"""The GPU's bench on a model so small that a CPU computes it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench import __main__ as cli
from bench.gpu import gpu
from bench.gpu.gpu import SHAPES, write_model


def test_without_a_gpu_a_tiny_model_is_measured_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["gpu", "--json", str(out), "--device", "cpu", "--steps", "3"]
    given += [
        "--batches",
        "1",
        "4",
        "--context",
        "48",
        "--prefill",
        "96",
        "--shared",
        "96",
        "--behind",
        "70",
    ]
    monkeypatch.setattr("sys.argv", ["bench", *given, "--tenants", "2", "--sequences", "3"])
    assert cli.main() == 0
    document = json.loads(out.read_text())
    found: dict[str, float] = document["figures"]
    each = ("decode_tokens_per_s", "decode_roofline_share", "host_gap_share")
    assert found.keys() == {
        "copy_gb_per_s",
        "matmul_tflop_per_s",
        "tiny_ready_s",
        "tiny_prefill_tokens_per_s",
        "tiny_prefill_matmul_share",
        "tiny_turn_ms",
        "tiny_decode_tokens_per_s_in_turn_b4",
        "tiny_shared_tokens_per_s",
        "tiny_shared_tokens_per_s_ungrouped",
        *(f"tiny_{figure}_b{batch}" for figure in each for batch in (1, 4)),
    }
    assert min(value for name, value in found.items() if "gap" not in name) > 0
    assert all(0 <= found[f"tiny_host_gap_share_b{batch}"] < 1 for batch in (1, 4))
    by_default = {name for name in found if not name.endswith("_b4")}
    assert by_default <= gpu.FIGURES.keys()
    assert document["parameters"]["device"] == "cpu"


@pytest.mark.parametrize("options", [["--device", "cuda"], ["--device", "cpu", "--steps", "0"]])
def test_what_cannot_be_measured_is_said(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["bench", "gpu", *options])
    assert cli.main() == 1
    assert options[-2] in capsys.readouterr().err


def test_a_shape_counts_the_weights_that_a_step_reads(tmp_path: Path) -> None:
    shape = SHAPES["tiny"]
    write_model(shape, tmp_path, torch.device("cpu"), torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)
    assert shape.num_weights == matrices
    assert shape.step_bytes(1, 0, 4) == 4 * matrices, "tied, the embedding is the last product"
    assert shape.step_bytes(3, 10, 4) - shape.step_bytes(3, 0, 4) == 3 * 10 * 2 * 2 * 2 * 16 * 4
