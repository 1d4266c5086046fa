"""Drawing: every room draws the reference's tokens, and these have the distribution asked for."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import backends
from kernels.native import library
from kernels.noise import noise_states
from kernels.reference.sampling import weights
from kernels.sampling import draw
from tests.effort import scaled
from tests.kernels.sampling_cases import batches, columns, masks_of, numbers

CPU = torch.device("cpu")
SIZES = (1, 2, 17, 63, 64, 65, 1000, 4099)


@pytest.fixture
def every_level() -> Iterator[list[str]]:
    yield [level for level in library.LEVELS if library.available()]
    library.limit_level(library.LEVELS[-1])


def one(scores: list[float], state: int = 0, **asked: float) -> int:
    row = torch.tensor([scores])
    states = torch.tensor([state])
    return int(draw(row, states, columns([numbers(**asked)])))  # type: ignore[arg-type]


def exact(scores: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The distribution asked for, by sorting, in float64."""
    scaled_scores = scores.double().numpy() / temperature
    order = np.argsort(-scaled_scores, kind="stable")
    probabilities = np.exp(scaled_scores[order] - scaled_scores.max())
    probabilities[top_k or len(order) :] = 0
    probabilities /= probabilities.sum()
    if top_p < 1:
        probabilities[np.cumsum(probabilities) - probabilities >= top_p] = 0
    probabilities[probabilities < min_p * probabilities[0]] = 0
    result = np.zeros_like(probabilities)
    result[order] = probabilities / probabilities.sum()
    return result


def chi_square(seen: np.ndarray, expected: np.ndarray) -> float:
    """The p-value of Pearson's test."""
    statistic = float(((seen - expected) ** 2 / expected).sum())
    freedom = torch.tensor((len(seen) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2).double()))


def test_compiled_code_draws_the_references_tokens(every_level: list[str]) -> None:
    for scores, states, asked in batches(scaled(120), SIZES, 4):
        expected = draw(scores, states, asked, backend="reference").tolist()
        for level in every_level:
            library.limit_level(level)
            assert draw(scores, states, asked, backend="native").tolist() == expected


def test_compiled_code_forbids_what_the_reference_forbids(every_level: list[str]) -> None:
    for seed, (scores, states, asked) in enumerate(batches(scaled(120), SIZES, 4)):
        masks, before = masks_of(scores, seed), scores.clone()
        expected = draw(scores, states, asked, masks, backend="reference").tolist()
        for level in every_level:
            library.limit_level(level)
            assert draw(scores, states, asked, masks, backend="native").tolist() == expected
        assert scores.nan_to_num().equal(before.nan_to_num()), "log-probabilities are of these"


def test_a_gpu_draws_the_references_tokens_and_penalises_to_the_last_bit() -> None:
    """Its kernels do, in Triton's interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.sampling_case"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    different, drawn, changed, penalised = map(int, done.stdout.split())
    assert drawn > 60
    assert penalised == 900
    assert (different, changed) == (0, 0)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (0.7, 0, 1.0, 0.0),
        (3.0, 0, 1.0, 0.0),
        (1.0, 7, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.03),
        (1.4, 30, 0.9, 0.02),
    ],
)
def test_draws_have_the_distribution_that_is_asked_for(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    count = 20_000
    scores = torch.randn(50, generator=torch.Generator().manual_seed(3)) * 2
    states = torch.from_numpy(noise_states(range(count), [17] * count))
    asked = columns([numbers(temperature, top_k, top_p, min_p)]).expand(4, count).contiguous()
    seen = np.bincount(draw(scores.expand(count, -1), states, asked), minlength=50)
    expected = exact(scores, temperature, top_k, top_p, min_p)
    assert not seen[expected == 0].any()
    possible = expected > 0
    assert chi_square(seen[possible], expected[possible] * count) > 0.001


def test_a_row_does_not_depend_on_the_others() -> None:
    for scores, states, asked in batches(18, (300,), 5):
        together = draw(scores, states, asked).tolist()
        alone = [
            draw(scores[row : row + 1], states[row : row + 1], asked[:, row : row + 1].contiguous())
            for row in range(5)
        ]
        assert [int(token) for token in alone] == together


def test_rows_may_lie_apart() -> None:
    for scores, states, asked in batches(6, (70,), 3):
        wide = torch.cat([scores, torch.full_like(scores, 99.0)], dim=1)
        assert draw(wide[:, :70], states, asked).equal(draw(scores, states, asked))


@pytest.mark.parametrize("backend", ["reference", backends.default(CPU)])
def test_ties_are_kept_from_the_first_token_on(backend: backends.Backend) -> None:
    """In a flat row, ten of 40 tokens are those at its head."""
    count = 300
    states = torch.from_numpy(noise_states(range(count), [0] * count))
    for asked in (numbers(top_k=10), numbers(top_p=0.25), numbers(top_k=20, top_p=0.5)):
        rows = columns([asked]).expand(4, count).contiguous()
        tokens = draw(torch.zeros(count, 40), states, rows, backend=backend)
        assert set(tokens.tolist()) == set(range(10))


def test_the_smallest_nucleus_is_the_likeliest_token() -> None:
    for state in range(20):
        assert one([0.0, 3.0, 2.99, 3.0], state, top_p=1e-12) == 1
        assert one([0.0, 3.0, 2.99, 3.0], state, top_p=0.0) == 1


def test_extreme_temperatures_neither_overflow_nor_lose_a_token() -> None:
    assert {one([0.0, 3.0, 2.9], state, temperature=1e-30) for state in range(20)} == {1}
    assert {one([-9e3, 9e3, 0.0], state, temperature=1e30) for state in range(40)} == {0, 1, 2}


def test_forbidden_tokens_are_never_drawn() -> None:
    scores = [-math.inf, 1.0, -math.inf, 0.5, math.nan]
    for temperature in (1e-30, 1.0, 1e30):
        seen = {one(scores, state, temperature=temperature, top_k=4) for state in range(40)}
        assert seen <= {1, 3}


def test_a_row_without_a_finite_maximum_takes_the_first_of_its_largest() -> None:
    assert one([-math.inf] * 5) == 0
    assert one([0.0, math.inf, math.inf]) == 1
    assert one([math.nan] * 3) == 0


def test_a_temperature_of_zero_takes_the_first_of_the_largest() -> None:
    assert one([0.0, 2.0, 2.0], temperature=0.0) == 1


def test_masses_are_whole_numbers_near_the_exponential() -> None:
    gaps = torch.linspace(0, 30, 10001)
    masses = weights(gaps)
    assert masses.equal(masses.round())
    assert (masses / 2**34 - torch.exp(-gaps.double())).abs().max() < 5e-8
    assert weights(torch.tensor([0.0, math.inf])).tolist() == [2.0**34, 0.0]


def test_a_large_nucleus_of_a_large_vocabulary_is_found() -> None:
    """Where few tokens hold little, more are looked at; some tokens on its border would differ."""
    scores = torch.randn(3, 30_000, generator=torch.Generator().manual_seed(5)) / 4
    states = torch.from_numpy(noise_states([1, 2, 3], [4, 5, 6]))
    for top_p in (0.5, 0.999):
        asked = columns([numbers(top_p=top_p, top_k=top_k) for top_k in (0, 29_000, 100)])
        expected = draw(scores, states, asked, backend="reference")
        assert draw(scores, states, asked).equal(expected)
