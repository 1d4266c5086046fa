"""The bench of the GPU kernels: its batches, its rivals and its verdict, on whatever there is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bench.__main__
from bench import registry
from bench.kernels import kernels
from bench.kernels import rivals as kernel_rivals
from bench.kernels.batches import Heads, Paged, paged, tenants
from bench.kernels.rivals import Work
from kernels.attention import attend

HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32)
CPU = torch.device("cpu")


def reference(example: Paged) -> torch.Tensor:
    batch = replace(example.batch, groups=None)
    return attend(example.query, example.kv, batch, scale=32**-0.5, backend="reference")


@pytest.mark.parametrize(
    "seqs", [[(48, 1)] * 3, [(40, 40)], [(48, 20)]], ids=["decode", "prefill", "chunk"]
)
def test_torchs_attention_is_given_the_same_work(seqs: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    example = paged(seqs, HEADS, CPU)
    rival = kernel_rivals.sdpa(example)()
    assert isinstance(rival, torch.Tensor)
    rows = rival.transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(rows, reference(example), rtol=1e-5, atol=1e-5)


def test_ordered_blocks_hold_as_much_and_shuffled_ones_are_out_of_order() -> None:
    example = paged([(160, 1)] * 2, HEADS, CPU)
    tables, ordered = example.batch.block_tables, example.in_order().batch.block_tables
    assert tables.flatten().tolist() != ordered.flatten().tolist() == list(range(20))
    assert sorted(tables.flatten().tolist()) == list(range(20))


def test_tenants_share_their_prefix_and_nothing_else() -> None:
    example = tenants(2, 32, 3, 16, HEADS, CPU)
    tables = example.batch.block_tables.tolist()
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    assert tables[3][:2] == tables[4][:2] == tables[5][:2]
    assert len({block for row in tables for block in row}) == 2 * 2 + 6
    assert example.without_groups().batch.groups is None


def test_without_cuda_the_errors_are_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "interpreted", lambda: {"decode": 0.001, "prefill": 0.002})
    result = kernels.run(argparse.Namespace())
    assert result.figures == {"error_decode": 0.001, "error_prefill": 0.002}
    assert result.figures.keys() <= kernels.FIGURES.keys()
    assert not result.parameters["measured"]
    assert not result.failure


def test_what_a_wrong_kernel_gave_is_written_before_the_bench_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "interpreted", lambda: {"decode": float("inf"), "prefill": 0.001})
    file = tmp_path / "kernels.json"
    monkeypatch.setattr(sys, "argv", ["bench", "kernels", "--json", str(file)])
    assert bench.__main__.main() == 1
    written = json.loads(file.read_text())
    assert written["figures"] == {"error_decode": None, "error_prefill": 0.001}
    assert written["parameters"]["wrong"].keys() == {"error_decode"}
    printed = capsys.readouterr()
    assert "error_decode" in printed.err
    assert "error_prefill" in printed.out


def test_neither_a_kernel_nor_a_rival_that_raises_ends_the_bench(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Watch:
        def medians(self, replays: Sequence[Work]) -> list[float]:
            for replay in replays:
                replay()
            return [2.0] * len(replays)

    def raises(*_: object) -> Work:
        raise RuntimeError("no such shape\nand a long story")

    def example(*_: object) -> Paged:
        return paged([(32, 1)] * 2, HEADS, CPU)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(Paged, "attend", reference)
    monkeypatch.setattr(kernel_rivals, "captured", lambda work: work)
    monkeypatch.setattr(kernel_rivals, "flashinfer_decode", raises)
    monkeypatch.setattr(kernels, "Stopwatch", Watch)
    monkeypatch.setattr(kernels, "_fits", lambda *_: True)
    monkeypatch.setattr(kernels, "paged", example)
    for rate in ("copy_rate", "matmul_rate"):
        monkeypatch.setattr(kernels, rate, lambda *_: 1.0)
    for part in ("_grouped", "_quantized", "_linear", "_adapters", "_prefill", "_chunk"):
        monkeypatch.setattr(kernels, part, raises)
    result = kernels.run(argparse.Namespace(batches=[1], contexts=[512]))
    raised = {"grouped", "quantized", "linear", *(f"prefill_c{c}" for c in kernels.PREFILLS)}
    raised |= {f"chunk_q{count}" for count in kernels.NEW_TOKENS}
    raised |= {f"adapters_{count}" for count in kernels.ADAPTERS}
    assert result.parameters["wrong"] == dict.fromkeys(raised, "RuntimeError: no such shape")
    assert result.parameters["absent"] == {"flashinfer": "RuntimeError: no such shape"}
    assert result.figures["decode_sdpa_ratio_b1_c512"] == 1.0
    assert "decode_flashinfer_ratio_b1_c512" not in result.figures
    assert result.figures.keys() <= kernels.FIGURES.keys()
    assert "prefill_c2048" in result.failure


def test_a_bench_runs_where_packages_that_others_need_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> registry.Bench:
        if name == "sockets":
            raise ModuleNotFoundError("No module named 'websockets'", name="websockets")
        return registry.load(name)

    monkeypatch.setattr(bench.__main__, "load", load)
    monkeypatch.setattr(sys, "argv", ["bench", "sockets"])
    assert bench.__main__.main() == 1
    assert "websockets" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["bench", "--list"])
    assert bench.__main__.main() == 0
    assert "needs the package websockets" in capsys.readouterr().out
