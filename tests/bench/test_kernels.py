"""The bench of the GPU kernels: its batches, its rivals and its verdict, on whatever there is."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import pytest
import torch

import bench.__main__
from bench import kernel_rivals, kernels, registry
from bench.kernel_batches import Heads, Paged, paged, tenants
from bench.registry import BenchError
from kernels.attention import attend

HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=32, dtype=torch.float32)
CPU = torch.device("cpu")


def reference(example: Paged) -> torch.Tensor:
    batch = replace(example.batch, groups=None)
    return attend(example.query, example.kv, batch, scale=32**-0.5, backend="reference")


@pytest.mark.parametrize("seqs", [[(48, 1)] * 3, [(40, 40)]], ids=["decode", "prefill"])
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


def test_without_cuda_the_errors_are_figures_and_a_wrong_kernel_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "interpreted", lambda: {"decode": 0.001, "prefill": 0.002})
    result = kernels.run(argparse.Namespace())
    assert result.figures == {"error_decode": 0.001, "error_prefill": 0.002}
    assert result.figures.keys() <= kernels.FIGURES.keys()
    assert not result.parameters["measured"]
    monkeypatch.setattr(kernels, "interpreted", lambda: {"decode": float("inf")})
    with pytest.raises(BenchError, match="error_decode"):
        kernels.run(argparse.Namespace())


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
