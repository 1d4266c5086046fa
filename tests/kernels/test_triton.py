"""The Triton kernels agree with the reference, in Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.triton_cases import CASES, Case, Outcome

TOLERANCES = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton_cases"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row.pop("name"): Outcome(**row) for row in rows}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_equals_the_reference(case: Case, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[case.name].error < TOLERANCES[case.dtype]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cache_write_fills_its_slots_and_nothing_else(
    case: Case, outcomes: dict[str, Outcome]
) -> None:
    assert outcomes[case.name].memory_exact
