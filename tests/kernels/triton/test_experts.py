"""Experts in Triton agree with the reference, in Triton's interpreter and, if any, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.triton.experts.products import tile_for, tiles
from kernels.triton.experts.rows import most_blocks
from tests.kernels.triton.expert_cases import CASES, ROUTINGS, Case

PLACES = {"interpreted": "cpu"} | ({"gpu": "cuda"} if torch.cuda.is_available() else {})
TOLERANCES = {
    "cpu": {"float32": 2e-5, "float16": 0.04},
    "cuda": {"float32": 2e-4, "float16": 0.06},
}
"""Of values up to 40, where a last bit of float16 is 0.03."""
_SECONDS = 900  # where other programs keep the machine busy

pytestmark = pytest.mark.timeout(_SECONDS)


@pytest.fixture(scope="module", params=PLACES.values(), ids=PLACES.keys())
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def printed(place: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.expert_cases", place],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ROUTINGS)
def test_tokens_get_the_references_experts_and_shares(name: str, printed: dict[str, Any]) -> None:
    assert printed["routings"][name] < 1e-6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_experts_give_what_the_reference_gives(
    case: Case, printed: dict[str, Any], place: str
) -> None:
    error, _ = printed["experts"][case.name]
    assert error < TOLERANCES[place][case.dtype]


def test_batch_invariant_rows_have_the_same_bits_beside_others(printed: dict[str, Any]) -> None:
    seen = [printed["experts"][case.name][1] for case in CASES if case.batch_invariant]
    assert seen == [True] * 2


def test_a_routers_results_may_lie_in_a_wider_tensor(printed: dict[str, Any]) -> None:
    assert printed["questions"]["rows_apart"]


def test_scores_that_are_no_numbers_choose_experts_that_there_are(printed: dict[str, Any]) -> None:
    assert printed["questions"]["no_numbers"]


def test_no_tokens_choose_nothing(printed: dict[str, Any]) -> None:
    assert printed["questions"]["no_tokens"]


def test_blocks_have_each_row_once_and_nobodys_are_empty(printed: dict[str, Any]) -> None:
    assert printed["questions"]["sorted_once"]


def test_the_host_waits_for_no_router(printed: dict[str, Any]) -> None:
    assert printed["questions"]["nothing_is_waited_for"]


def test_memory_is_that_of_weights_and_biases(printed: dict[str, Any]) -> None:
    case = Case("memory", 0)
    numbers = case.num_experts * (
        3 * case.hidden_size * case.inter + 2 * case.inter + case.hidden_size
    )
    assert printed["questions"]["memory"] == 4 * numbers


@pytest.mark.parametrize("counts", [[0, 0, 9], [3, 3, 3], [1, 1, 7], [4, 4, 5], [1, 4, 4], [0] * 3])
def test_there_are_blocks_enough_for_any_choice(counts: list[int]) -> None:
    needed = sum(-(-count // 4) for count in counts)
    assert needed <= most_blocks(sum(counts), len(counts), 4)


def test_the_cases_take_every_tile() -> None:
    for dtype in (torch.float32, torch.float16):
        taken = {
            tile_for(
                case.num_tokens * case.per_token / case.num_experts, dtype, batch_invariant=False
            )
            for case in CASES
            if case.dtype == str(dtype).removeprefix("torch.")
        }
        assert taken == set(tiles(dtype))


@pytest.mark.parametrize("mean", [0.1, 10.0, 1000.0])
def test_one_tile_takes_any_number_of_rows_where_they_must_not_matter(mean: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert tile_for(mean, dtype, batch_invariant=True) == tiles(dtype)[1]


def test_what_is_beside_experts_is_added_through_its_gate(printed: dict[str, Any]) -> None:
    assert printed["questions"]["shared_is_added"]
