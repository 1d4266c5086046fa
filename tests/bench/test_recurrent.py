"""The bench of recurrent layers prints what it says it does."""

from __future__ import annotations

import argparse

import pytest
import torch

from bench.kernels import recurrent
from kernels.native import library

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


def test_every_figure_of_a_case_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"decode_8": (2, 1), "prompt_512": (1, 9)}
    monkeypatch.setattr(recurrent, "_ROUNDS", 1)
    monkeypatch.setattr(recurrent, "CASES", cases)
    result = recurrent.run(argparse.Namespace(dtype="float32"))
    wanted = {name for name in recurrent.FIGURES if name.startswith((*cases, "delta"))}
    assert set(result.figures) == wanted
    assert all(figure > 0 for figure in result.figures.values())


@torch.inference_mode()
def test_what_is_timed_side_by_side_computes_the_same() -> None:
    ways = []
    for way in ("compute", "in_torch"):
        torch.manual_seed(0)
        ways.append(getattr(recurrent.Layer.drawn(2, 1, torch.float32), way)())
    found, (expected, _) = ways
    torch.testing.assert_close(found, expected[:, 0], rtol=1e-5, atol=1e-5)
