"""The Triton kernels agree with the reference, in Triton's interpreter and, if any, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.triton.cases import CASES, Case, Outcome

TOLERANCES = {
    "cpu": {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2},
    "cuda": {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2},
}
"""A GPU's exponentials are good to 22 bits, and it multiplies in bfloat16, not widened."""
LAYER_TOLERANCES = {
    "cpu": {"float32": 1e-5, "float16": 8e-3},
    "cuda": {"float32": 2e-4, "float16": 0.1},
}
"""Of values up to 100, where a last bit of float16 is 0.06."""

PLACES = {"interpreted": "cpu"} | ({"gpu": "cuda"} if torch.cuda.is_available() else {})
_SECONDS = 900  # where other programs keep the machine busy

pytestmark = pytest.mark.timeout(_SECONDS)


@pytest.fixture(scope="module", params=PLACES.values(), ids=PLACES.keys())
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def printed(place: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.cases", place],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("name"): row for row in rows}


@pytest.fixture(scope="module")
def outcomes(printed: dict[str, dict[str, Any]]) -> dict[str, Outcome]:
    return {name: Outcome(**row) for name, row in printed.items() if name != "layers"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_equals_the_reference(
    case: Case, outcomes: dict[str, Outcome], place: str
) -> None:
    assert outcomes[case.name].error < TOLERANCES[place][case.dtype]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cache_write_fills_its_slots_and_nothing_else(
    case: Case, outcomes: dict[str, Outcome]
) -> None:
    assert outcomes[case.name].memory_exact


def test_batch_invariant_rows_have_the_same_bits_alone(outcomes: dict[str, Outcome]) -> None:
    seen = [outcomes[case.name].same_alone for case in CASES if case.batch_invariant]
    assert seen == [True] * 5


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("decode, ragged", ["attend_own"]),
        ("decode, several splits", ["attend_own"]),
        ("decode, batch-invariant", ["attend_own"]),
        ("nested groups", ["attend_chunk", "attend_shared", "attend_own"]),
        ("groups of several tiles", ["attend_shared", "attend_own"]),
        ("prefill, ragged", ["attend_chunk"]),
        ("chunk with prefix", ["attend_chunk"]),
        ("chunk split over keys", ["attend_chunk", "merge_chunk"]),
        ("one chunk split and one whole", ["attend_chunk", "merge_chunk", "attend_own"]),
        ("decode and chunks in one batch", ["attend_chunk", "attend_own"]),
    ],
)
def test_nothing_is_launched_to_merge_what_is_in_one_part(
    name: str, launches: list[str], outcomes: dict[str, Outcome]
) -> None:
    assert outcomes[name].launches == launches


def test_a_layers_other_kernels_equal_their_reference(
    printed: dict[str, dict[str, Any]], place: str
) -> None:
    errors = printed["layers"]["errors"]
    assert len(errors) == 48
    for name, error in errors.items():
        assert error < LAYER_TOLERANCES[place][name.rpartition(" ")[2]], name
