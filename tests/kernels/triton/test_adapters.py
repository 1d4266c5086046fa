"""Adapters in Triton agree with the reference, in the interpreter and, if any, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.triton.adapters.products import piece_of

PLACES = {"interpreted": "cpu"} | ({"gpu": "cuda"} if torch.cuda.is_available() else {})
_SECONDS = 900  # where other programs keep the machine busy

pytestmark = pytest.mark.timeout(_SECONDS)


@pytest.fixture(scope="module", params=PLACES.values(), ids=PLACES.keys())
def printed(request: pytest.FixtureRequest) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.adapter_cases", request.param],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_any_mix_of_adapters_gives_what_the_reference_gives(printed: dict[str, Any]) -> None:
    assert printed["mixes"] >= 24


def test_changed_experts_give_what_the_reference_gives(printed: dict[str, Any]) -> None:
    assert printed["wrong_experts"] == {}


def test_the_host_waits_for_no_adapter(printed: dict[str, Any]) -> None:
    assert not printed["waits"]


def test_a_start_compiles_products_and_those_into_experts_and_back(printed: dict[str, Any]) -> None:
    assert printed["launches_of_a_start"] == 2 + 2 + 4


@pytest.mark.parametrize("depth", [1, 512, 513, 4096, 14336, 53248])
def test_few_programs_share_the_inputs_of_a_row(depth: int) -> None:
    piece = piece_of(depth)
    assert 1 <= -(-depth // piece) <= 8
    assert piece % 128 == 0
