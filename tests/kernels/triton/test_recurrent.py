"""Recurrent layers in Triton agree with the reference, in the interpreter and, if any, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PLACES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
_SECONDS = 900  # where other programs keep the machine busy


@pytest.mark.timeout(_SECONDS)
@pytest.mark.parametrize("place", PLACES)
def test_recurrent_layers_give_and_leave_what_the_reference_does(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.recurrent_cases", place],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors: dict[str, float] = json.loads(done.stdout)
    assert len(errors) == 24
    assert {name: error for name, error in errors.items() if not error < 1e-5} == {}
